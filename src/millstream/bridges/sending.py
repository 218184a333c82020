"""Records to topics. Each gets its place in the log, or the reason why it has none.

The producer is idempotent and waits for all replicas: what is acknowledged is durable. Its queue is
bounded; beyond that, records are refused at once, so that senders hold back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from millstream.admin.outgoing import ANY_PARTITION, Outgoing
from millstream.bridges.counts import Counts
from millstream.bridges.http.shapes import BadRequest, Written, check_header_name

logger = logging.getLogger(__name__)

QUEUE_RECORDS_MAX = 100_000
QUEUE_KBYTES_MAX = 65_536
DELIVERY_MS_MAX = 30_000
POLL_SECONDS = 0.1
_STATUS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: 404,
    KafkaError._UNKNOWN_TOPIC: 404,
    KafkaError._UNKNOWN_PARTITION: 422,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: 403,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: 403,
    KafkaError.MSG_SIZE_TOO_LARGE: 413,
    KafkaError.INVALID_RECORD: 422,
    KafkaError._QUEUE_FULL: 429,
    KafkaError.POLICY_VIOLATION: 429,
}

Done = Callable[[Written], None]
Delivered = Callable[[Outgoing, KafkaError | None, Any], None]


class Sender:
    """One producer for all threads of a bridge; `send` calls back in the producer's thread."""

    def __init__(self, settings: Mapping[str, Any], counts: Counts) -> None:
        self._counts = counts
        self.problem: str | None = None
        self._producer = Producer(
            {
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "compression.type": "lz4",
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": QUEUE_RECORDS_MAX,
                "queue.buffering.max.kbytes": QUEUE_KBYTES_MAX,
                "delivery.timeout.ms": DELIVERY_MS_MAX,
                "message.max.bytes": 16 * 1024 * 1024,
                "log_level": 0,
                **settings,
            }
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bridge-sender", daemon=True)
        self._thread.start()

    def send(self, topic: str, record: Outgoing, done: Done | None = None) -> None:
        """Send one record; `done` is called once, with its place or an error."""

        def delivered(error: KafkaError | None, message: Any) -> None:
            self._report(topic, _written(error, message), done)

        given: dict[str, Any] = {"on_delivery": delivered}
        if record.partition != ANY_PARTITION:
            given["partition"] = record.partition
        if record.timestamp_ms:
            given["timestamp"] = record.timestamp_ms
        try:
            for name, _ in record.headers:
                check_header_name(name, "record")
            self._producer.produce(
                topic, record.value, record.key, headers=list(record.headers) or None, **given
            )
        except BufferError:
            full = Written(status=429, error="too many records are waiting to be written")
            self._report(topic, full, done)
        except KafkaException as error:
            self._report(topic, _written(error.args[0], None), done)
        except (BadRequest, ValueError, TypeError, OverflowError) as error:
            # What librdkafka's binding cannot take: the other records of a request are answered.
            self._report(topic, Written(status=422, error=str(error)), done)

    def send_many(
        self, topic: str, records: Iterable[Outgoing], delivered: Delivered
    ) -> list[tuple[Outgoing, KafkaError]]:
        """Send records of one stream, whose headers are known to be right. Returns those that were
        refused at once; the producer's thread calls `delivered` with each of the others and the
        error of the cluster, or None. It is faster than `send`, because nothing else is done for
        each record."""
        produce, refused = self._producer.produce, []
        for record in records:
            try:
                produce(
                    topic,
                    record.value,
                    record.key,
                    record.partition,
                    partial(delivered, record),
                    headers=record.headers or None,
                )
            except BufferError:
                refused.append((record, KafkaError(KafkaError._QUEUE_FULL)))
            except KafkaException as error:
                refused.append((record, error.args[0]))
        return refused

    def send_and_wait(self, topic: str, records: Iterable[Outgoing]) -> list[Written]:
        """Send, and return when all are acknowledged or refused."""
        sent = list(records)
        results: list[Written | None] = [None] * len(sent)
        missing = threading.Semaphore(0)

        def note(index: int) -> Done:
            def done(written: Written) -> None:
                results[index] = written
                missing.release()

            return done

        for index, record in enumerate(sent):
            self.send(topic, record, note(index))
        for _ in sent:
            missing.acquire()
        return [it for it in results if it is not None]

    def close(self) -> None:
        """Wait for what was sent, and stop."""
        with suppress(KafkaException):  # a fatal one
            self._producer.flush(DELIVERY_MS_MAX / 1000)
        self._stopping.set()
        self._thread.join()

    def _report(self, topic: str, written: Written, done: Done | None) -> None:
        name = "records_in" if written.error is None else "records_refused"
        self._counts.add(name, topic=topic)
        if done is not None:
            done(written)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._producer.poll(POLL_SECONDS)
            except KafkaException as error:
                # A fatal error: the user may write nothing, for example. From now on `produce`
                # refuses each record with the reason.
                reason = error.args[0].str()
                problem = f"no record can be written until the bridge is restarted: {reason}"
                if problem != self.problem:
                    self.problem = problem
                    logger.error(problem)


def status_of(error: KafkaError) -> int:
    """The status of HTTP for an error; 503 if the record may be taken later."""
    return _STATUS.get(error.code(), 503)


def _written(error: KafkaError | None, message: Any) -> Written:
    if error is not None:
        return Written(status=status_of(error), error=error.str())
    return Written(message.partition(), message.offset(), message.timestamp()[1])
