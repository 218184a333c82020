"""How replies, and the record of them, are written.

In a consumer group: in one transaction with the offsets of the requests. Either a request counts as
read, its reply is there and will be found again, or none of it happened; a server that was taken
for dead is fenced. In a share group acknowledgements are in no transaction: the reply is recorded
first, then sent, then the request is acknowledged; so a crash repeats a reply and loses none.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from millstream.errors import MillstreamError
from millstream.rpc.answered import AnsweredLog
from millstream.rpc.headers import Request, reply_headers
from millstream.rpc.intakes import GroupIntake
from millstream.rpc.replies import Reply

FLUSH_SECONDS = 10.0
# Replies of a server that dies within a transaction hold back those of others for so long.
TRANSACTION_TIMEOUT_MS = 10_000
TRANSACTION_SECONDS = 30.0  # for each of its requests
ANY_PARTITION = -1


class Answer(NamedTuple):
    """A request, and what is done about it."""

    message: Message
    request: Request
    reply: Reply | None  # None: skipped
    is_new: bool = False  # the reply is not recorded yet
    is_sent: bool = False  # to the topic that the request names


class Refused(MillstreamError):
    """A broker does not accept a reply, and will not."""


class Undelivered(MillstreamError):
    """Nothing was acknowledged; the requests have to be answered again."""


class Outgoing:
    """Records of replies on their way, and what became of them."""

    def __init__(self, producer: Producer, log: AnsweredLog | None) -> None:
        self._producer, self._log = producer, log
        self._failures: list[tuple[KafkaError, str | None]] = []  # and the topic

    def record(self, answer: Answer) -> None:
        """Keep the reply for when the request is sent again."""
        if self._log is None or answer.reply is None or answer.request.correlation_id is None:
            return
        self._produce(
            self._log.topic,
            key=answer.request.correlation_id,
            value=answer.reply.encode(),
            partition=self._log.partition_for(answer.message.partition() or 0),
        )

    def send(self, answer: Answer) -> None:
        request, reply = answer.request, answer.reply
        assert reply is not None
        assert request.reply_topic is not None
        assert request.correlation_id is not None
        partition = request.reply_partition
        self._produce(
            request.reply_topic,
            key=request.key,
            value=reply.value,
            partition=ANY_PARTITION if partition is None else partition,
            headers=list(reply_headers(request.correlation_id, reply.failure)),
        )

    def flush(self) -> None:
        """Wait until all is acknowledged. Raises `Refused` or `Undelivered`."""
        remaining = self._producer.flush(FLUSH_SECONDS)
        self.check()
        if remaining:
            raise Undelivered(f"{remaining} replies were not acknowledged")

    def check(self) -> None:
        for error, topic in self._failures:
            if self._is_refused(error, topic):
                raise Refused(error.str())
        for error, topic in self._failures:
            raise Undelivered(f"{topic}: {error.str()}")

    def _is_refused(self, error: KafkaError, topic: str | None) -> bool:
        """Whether the reply is at fault, or its topic; not the server, or its own topic."""
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return True
        if error.retriable() or error.code() in _OF_THE_TRANSACTION:
            return False
        return self._log is None or topic != self._log.topic

    def _produce(self, topic: str, **record: Any) -> None:
        while True:
            try:
                self._producer.produce(topic, on_delivery=self._delivered, **record)
                return
            except BufferError:
                self._producer.flush(FLUSH_SECONDS)
            except (ValueError, TypeError) as error:
                raise Refused(str(error)) from error
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if self._is_refused(reason, topic):
                    raise Refused(reason.str()) from error
                raise Undelivered(f"{topic}: {reason.str()}") from error

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append((error, message.topic()))


# Failures of other records, or of the server itself, not of the record in question.
_OF_THE_TRANSACTION = frozenset(
    [
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._STATE,
        KafkaError._FATAL,
        KafkaError._FENCED,
        KafkaError._TIMED_OUT,
        KafkaError._MSG_TIMED_OUT,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_TXN_STATE,
    ]
)


class PlainDelivery:
    """Without a transaction: recorded, sent, then acknowledged."""

    def __init__(self, settings: Mapping[str, Any], log: AnsweredLog | None) -> None:
        self._producer = Producer({**settings, "linger.ms": 0, "enable.idempotence": True})
        self._log = log

    def deliver(self, answers: Sequence[Answer]) -> None:
        new = [it for it in answers if it.is_new]
        if new and self._log is not None:
            recorded = Outgoing(self._producer, self._log)
            for it in new:
                recorded.record(it)
            recorded.flush()
        sent = Outgoing(self._producer, self._log)
        for it in answers:
            if it.is_sent:
                sent.send(it)
        sent.flush()

    def close(self) -> None:
        self._producer.flush(FLUSH_SECONDS)


class TransactionalDelivery:
    """All in one transaction, with the offsets of the requests."""

    def __init__(
        self, settings: Mapping[str, Any], log: AnsweredLog, intake: GroupIntake, group: str
    ) -> None:
        self._settings = {
            "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
            **settings,
            "linger.ms": 0,
            "transactional.id": f"{group}-{uuid.uuid4()}",
        }
        self._log, self._intake = log, intake
        self._producer: Producer | None = None

    def deliver(self, answers: Sequence[Answer]) -> None:
        producer = self._ready()
        try:
            producer.begin_transaction()
            outgoing = Outgoing(producer, self._log)
            for it in answers:
                if it.is_new:
                    outgoing.record(it)
                if it.is_sent:
                    outgoing.send(it)
            offsets = self._intake.offsets_after([it.message for it in answers])
            _retrying(
                lambda: producer.send_offsets_to_transaction(
                    offsets, self._intake.membership, TRANSACTION_SECONDS
                )
            )
            _retrying(lambda: producer.commit_transaction(TRANSACTION_SECONDS))
        except KafkaException as error:
            self._abort(producer, error)
            outgoing.check()
            raise Undelivered(error.args[0].str()) from error
        except BaseException:
            self._abort(producer, None)
            raise

    def close(self) -> None:
        """There is no open transaction: `deliver` ends each."""
        self._producer = None

    def _ready(self) -> Producer:
        if self._producer is None:
            producer = Producer(self._settings)
            _retrying(lambda: producer.init_transactions(TRANSACTION_SECONDS))
            self._producer = producer
        return self._producer

    def _abort(self, producer: Producer, error: KafkaException | None) -> None:
        """End the transaction; a producer that cannot go on is replaced: its successor, of the same
        id, aborts what it left open."""
        if error is not None and error.args[0].fatal():
            self._producer = None
            return
        try:
            _retrying(lambda: producer.abort_transaction(TRANSACTION_SECONDS))
        except KafkaException:
            self._producer = None


def _retrying(step: Callable[[], None]) -> None:
    """Steps of a transaction may be tried again where the client says so."""
    attempts = 3
    while True:
        try:
            step()
            return
        except KafkaException as error:
            attempts -= 1
            if attempts == 0 or not error.args[0].retriable():
                raise
