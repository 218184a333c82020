"""The caller's side: sends requests, and waits for replies in one partition of the reply topic.

A client reads one partition, which it assigns to itself: there is no group, so no rebalance and no
commit. It knows the end of that partition before its first request, so it misses no reply. Several
clients may share a partition; each ignores the replies of the others.

A thread polls for replies and resolves futures; `call` waits for one, `call_async` awaits it.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from types import TracebackType
from typing import Self

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from millstream.admin.groups import list_groups
from millstream.client.cluster import Cluster
from millstream.client.fetching import log_end_offset
from millstream.errors import ApiError, MillstreamError
from millstream.rpc.headers import Headers, new_correlation_id, parse_reply, request_headers
from millstream.rpc.settings import (
    REPLIES_SUFFIX,
    client_settings,
    create_reply_topic,
    make_cluster,
)

TIMEOUT_SECONDS = 5.0  # Spring's default
POLL_SECONDS = 0.1
TIMED_OUT_KEPT = 10_000  # correlation ids, to distinguish late replies from those of others
RESPONDERS_SECONDS = 2.0  # how long it is believed that somebody answers
_WITHOUT_MEMBERS = ("empty", "dead")


class CallFailed(MillstreamError):
    """A call has no result."""


class CallTimeout(CallFailed):
    """No reply came in time. The request may have been handled."""


class NoResponders(CallFailed):
    """No server is there; the request was not sent."""


class RemoteError(CallFailed):
    """The server's function raised an exception."""

    def __init__(self, type_: str, message: str) -> None:
        super().__init__(f"{type_}: {message}")
        self.type = type_
        self.message = message


class Client:
    """Calls the servers of a topic; see the module. Any number of threads may call.

    `group` is the group of the servers: if it has no members, a call fails at once with
    `NoResponders`. None: calls are sent in any case, and time out.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        *,
        group: str | None = None,
        reply_topic: str | None = None,
        reply_partition: int | None = None,
        timeout: float = TIMEOUT_SECONDS,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.topic, self.group, self.timeout = topic, group, timeout
        self.reply_topic = reply_topic or f"{topic}{REPLIES_SUFFIX}"
        self.late_replies = 0  # that came after their call had timed out
        self.foreign_replies = 0  # of other clients in the same partition
        self._waiting: dict[bytes, Future[bytes | None]] = {}
        self._timed_out: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self._cluster = make_cluster(bootstrap_servers, settings)
        self._cluster_lock = threading.Lock()
        self._responders_until = 0.0
        self.reply_partition = self._choose_partition(reply_partition)
        end = self._cluster.retrying(
            lambda: log_end_offset(self._cluster, self.reply_topic, self.reply_partition)
        )
        given = client_settings(bootstrap_servers, settings)
        self._consumer = Consumer(
            {**given, "group.id": "unused", "enable.auto.commit": False, "fetch.wait.max.ms": 100}
        )
        self._consumer.assign([TopicPartition(self.reply_topic, self.reply_partition, end)])
        self._producer = Producer({**given, "linger.ms": 0, "enable.idempotence": True})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="millstream-rpc", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Fail the calls that wait, and close the connections."""
        self._stop.set()
        self._thread.join()
        self._fail_all(CallFailed("the client was closed"))
        self._consumer.close()
        with suppress(KafkaException):  # a fatal one
            self._producer.flush(5)
        self._cluster.close()

    # Calls

    def call(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
        timeout: float | None = None,
        attempts: int = 1,
        correlation_id: bytes | None = None,
    ) -> bytes | None:
        """The reply. Raises `CallTimeout`, `NoResponders` or `RemoteError`.

        With `attempts` > 1 the request is sent again, with the same correlation id, if there is no
        reply after an equal part of the timeout. The group answers a request that it has answered
        before with its first reply, so a program that keeps `correlation_id`, which may be any
        bytes, can also call again after a timeout or a restart of its own.
        """
        seconds = self._check_arguments(timeout, attempts)
        self._check_responders()
        correlation_id, future = self._register(correlation_id)
        deadline = time.monotonic() + seconds
        sent = request_headers(
            correlation_id,
            self.reply_topic,
            self.reply_partition,
            round((time.time() + seconds) * 1000),
            headers,
        )
        try:
            for attempt in range(attempts):
                self._send(value, key, sent, correlation_id, future)
                until = deadline - seconds * (attempts - 1 - attempt) / attempts
                try:
                    return future.result(max(until - time.monotonic(), 0))
                except FutureTimeout:
                    continue
        finally:
            self._forget(correlation_id, future)
        self._responders_until = 0.0
        raise CallTimeout(f"no reply from {self.topic} within {seconds:g} s")

    async def call_async(
        self,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: Headers = (),
        timeout: float | None = None,
        attempts: int = 1,
        correlation_id: bytes | None = None,
    ) -> bytes | None:
        """The same, awaited; a call that is cancelled is forgotten."""
        seconds = self._check_arguments(timeout, attempts)
        if time.monotonic() >= self._responders_until:
            await asyncio.to_thread(self._check_responders)
        correlation_id, future = self._register(correlation_id)
        deadline = time.monotonic() + seconds
        sent = request_headers(
            correlation_id,
            self.reply_topic,
            self.reply_partition,
            round((time.time() + seconds) * 1000),
            headers,
        )
        try:
            reply = asyncio.wrap_future(future)
            for attempt in range(attempts):
                self._send(value, key, sent, correlation_id, future)
                until = deadline - seconds * (attempts - 1 - attempt) / attempts
                done, _ = await asyncio.wait([reply], timeout=max(until - time.monotonic(), 0))
                if done:
                    return reply.result()
        finally:
            self._forget(correlation_id, future)
        self._responders_until = 0.0
        raise CallTimeout(f"no reply from {self.topic} within {seconds:g} s")

    def _check_arguments(self, timeout: float | None, attempts: int) -> float:
        seconds = self.timeout if timeout is None else timeout
        if attempts < 1 or seconds <= 0:
            raise ValueError(f"attempts={attempts}, timeout={seconds:g}: both have to be positive")
        return seconds

    def _register(self, given: bytes | None) -> tuple[bytes, Future[bytes | None]]:
        if self._stop.is_set():
            raise CallFailed("the client is closed")
        correlation_id, future = given or new_correlation_id(), Future[bytes | None]()
        with self._lock:
            if correlation_id in self._waiting:
                raise CallFailed("a call with this correlation id is waiting for its reply")
            self._waiting[correlation_id] = future
            self._timed_out.pop(correlation_id, None)
        return correlation_id, future

    def _send(
        self,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: Headers,
        correlation_id: bytes,
        future: Future[bytes | None],
    ) -> None:
        """The correlation id is the key unless there is another: a request that is sent again goes
        to the same partition, where its reply is known."""

        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                self._fail(correlation_id, future, _unsent(error))

        try:
            self._producer.produce(
                self.topic,
                value=value,
                key=correlation_id if key is None else key,
                headers=list(headers),
                on_delivery=delivered,
            )
        except BufferError:
            raise CallFailed("too many requests wait to be sent; is a broker away?") from None
        except KafkaException as error:
            raise _unsent(error.args[0]) from error
        self._poll()

    def _poll(self) -> None:
        try:
            self._producer.poll(0)
        except KafkaException as error:  # a fatal one: nothing can be sent any more
            self._fail_all(_unsent(error.args[0]))

    def _fail(self, correlation_id: bytes, future: Future[bytes | None], error: CallFailed) -> None:
        """Fail a call that still waits. The thread that takes its future out of `_waiting` settles
        it: a reply may arrive in one thread while another learns that the request was not sent."""
        with self._lock:
            if self._waiting.get(correlation_id) is not future:
                return
            del self._waiting[correlation_id]
        if future.set_running_or_notify_cancel():
            future.set_exception(error)

    def _fail_all(self, error: CallFailed) -> None:
        with self._lock:
            waiting = list(self._waiting.items())
        for correlation_id, future in waiting:
            self._fail(correlation_id, future, error)

    def _forget(self, correlation_id: bytes, future: Future[bytes | None]) -> None:
        with self._lock:
            if self._waiting.get(correlation_id) is future:
                del self._waiting[correlation_id]
            if not future.done() or future.cancelled():
                self._timed_out[correlation_id] = None
                if len(self._timed_out) > TIMED_OUT_KEPT:
                    self._timed_out.popitem(last=False)

    # Who answers

    def _check_responders(self) -> None:
        """Raise `NoResponders` if the group of the servers has no members."""
        if self.group is None or time.monotonic() < self._responders_until:
            return
        with self._cluster_lock:
            states = {it.group: it.state for it in list_groups(self._cluster)}
        if states.get(self.group, "dead") in _WITHOUT_MEMBERS:
            raise NoResponders(
                f"nobody serves {self.topic}: group {self.group} has no members; start a server"
            )
        self._responders_until = time.monotonic() + RESPONDERS_SECONDS

    def _choose_partition(self, given: int | None) -> int:
        cluster: Cluster = self._cluster
        try:
            topic = cluster.topic(self.reply_topic)
        except ApiError:
            create_reply_topic(cluster, self.reply_topic)
            topic = cluster.retrying(lambda: cluster.topic(self.reply_topic))
        count = len(topic.partitions)
        if given is None:
            return random.randrange(count)
        if not 0 <= given < count:
            raise CallFailed(f"{self.reply_topic} has {count} partitions, and no {given}")
        return given

    # Replies

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(POLL_SECONDS)
            self._poll()
            if message is not None:
                self._receive(message)

    def _receive(self, message: Message) -> None:
        if message.error() is not None:
            return  # librdkafka retries; calls time out if it lasts
        correlation_id, error = parse_reply(message.headers() or [])
        with self._lock:
            future = self._waiting.pop(correlation_id or b"", None)
            if future is None:
                if correlation_id in self._timed_out:
                    self.late_replies += 1
                else:
                    self.foreign_replies += 1
                return
        if future.set_running_or_notify_cancel():
            if error is None:
                future.set_result(message.value())
            else:
                future.set_exception(RemoteError(*error))


def _unsent(error: KafkaError) -> CallFailed:
    return CallFailed(f"the request cannot be sent: {error.str()}")
