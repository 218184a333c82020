"""The answering side: a function, called for each request of a topic.

The servers of a topic are members of a group, or of a share group, in which requests of one
partition are spread over all servers. A request counts as read when its reply is acknowledged by
the broker: a server that crashes in between handles it again. To run a request once, use its
correlation id, or let the function be repeatable.

A request that is sent again by its caller is answered with the reply that it had, from memory
(bounded). A request whose deadline has passed is skipped: nobody waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, NamedTuple, Self

from confluent_kafka import (
    Consumer,
    KafkaException,
    Message,
    Producer,
    ShareConsumer,
    TopicPartition,
)

from millstream.rpc.headers import Request, parse_request, reply_headers
from millstream.rpc.settings import (
    REPLIES_SUFFIX,
    client_settings,
    create_request_topic,
    make_cluster,
    start_share_group_at_the_beginning,
)

POLL_SECONDS = 0.1
BATCH = 100
FLUSH_SECONDS = 10.0
REPLIES_KEPT = 10_000
REPLY_BYTES_KEPT = 16 * 1024 * 1024
ANY_PARTITION = -1
PAUSE_SECONDS = 1.0  # after a failure
INTERNAL_PREFIX = "__"

logger = logging.getLogger(__name__)

Handler = Callable[[Request], bytes | str | None]


class Reply(NamedTuple):
    """What was answered, for a request that is sent again."""

    value: bytes | str | None
    error: Exception | None

    @property
    def size_bytes(self) -> int:
        return len(self.value or b"")


class ReplyMemory:
    """The newest replies by correlation id, bounded in number and bytes."""

    def __init__(self, count_max: int = REPLIES_KEPT, bytes_max: int = REPLY_BYTES_KEPT) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._replies: OrderedDict[bytes, Reply] = OrderedDict()
        self._size_bytes = 0

    def get(self, correlation_id: bytes | None) -> Reply | None:
        return None if correlation_id is None else self._replies.get(correlation_id)

    def put(self, correlation_id: bytes | None, reply: Reply) -> None:
        if correlation_id is None or reply.size_bytes > self._bytes_max:
            return
        replaced = self._replies.pop(correlation_id, None)
        self._size_bytes -= 0 if replaced is None else replaced.size_bytes
        self._replies[correlation_id] = reply
        self._size_bytes += reply.size_bytes
        while len(self._replies) > self._count_max or self._size_bytes > self._bytes_max:
            _, oldest = self._replies.popitem(last=False)
            self._size_bytes -= oldest.size_bytes


class Server:
    """Serves a topic in a thread, from `start` or `with` on; see the module."""

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        handler: Handler,
        *,
        group: str | None = None,
        share: bool = False,
        reply_topics: Sequence[str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`reply_topics`: patterns of the topics to which replies may go, TOPIC-replies if none
        are given: callers name the topic, and the server writes with its own rights."""
        self.topic, self.group = topic, group or f"{topic}-servers"
        self.handled = self.failed = self.expired = self.repeated = self.unanswered = 0
        self.problem: str | None = None  # why it does not serve at the moment
        self._reply_topics = (
            (f"{topic}{REPLIES_SUFFIX}",) if reply_topics is None else tuple(reply_topics)
        )
        self._handler = handler
        self._memory = ReplyMemory()
        self._lost: list[Any] = []  # errors of replies that were not acknowledged
        given = client_settings(bootstrap_servers, settings)
        self._producer = Producer({**given, "linger.ms": 0, "enable.idempotence": True})
        with make_cluster(bootstrap_servers, settings) as cluster:
            create_request_topic(cluster, topic)
            if share:
                start_share_group_at_the_beginning(cluster, self.group)
        membership = {**given, "group.id": self.group}
        self._intake: _GroupIntake | _ShareIntake
        self._intake = _ShareIntake(membership) if share else _GroupIntake(membership)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.run, name="millstream-rpc-server", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Answer the requests that are at hand, and leave the group."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def run(self) -> None:
        """Serve in this thread until `close`."""
        self._intake.subscribe(self.topic)
        try:
            while not self._stop.is_set():
                try:
                    self._turn()
                    self.problem = None
                except Exception as error:
                    self.problem = f"{type(error).__name__}: {error}"
                    logger.exception("%s: requests are not served at the moment", self.topic)
                    self._stop.wait(PAUSE_SECONDS)
        finally:
            self._producer.flush(FLUSH_SECONDS)
            self._intake.close()

    def _turn(self) -> None:
        messages = self._intake.poll()
        if not messages:
            self._producer.poll(0)
            return
        try:
            self._answer_all(messages)
        except BaseException:
            self._intake.release(messages)
            raise

    def _answer_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._answer(message)
        remaining = self._producer.flush(FLUSH_SECONDS)
        if remaining or self._lost:
            logger.warning(
                "%s: %d replies were not acknowledged; their requests are handled again",
                self.topic,
                remaining + len(self._lost),
            )
            self._lost.clear()
            self._intake.release(messages)
        else:
            self._intake.accept(messages)

    def _answer(self, message: Message) -> None:
        request = parse_request(message.value(), message.key(), message.headers() or [])
        if request.deadline_ms is not None and time.time() * 1000 > request.deadline_ms:
            self.expired += 1
            return
        reply = self._memory.get(request.correlation_id)
        if reply is not None:
            self.repeated += 1
        else:
            reply = self._handle(request)
            self._memory.put(request.correlation_id, reply)
        if request.wants_reply:
            self._send(request, reply)

    def _handle(self, request: Request) -> Reply:
        try:
            value = _checked(self._handler(request))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self.failed += 1
            logger.warning("%s: a request failed: %s", self.topic, error)
            return Reply(None, error)
        self.handled += 1
        return Reply(value, None)

    def _send(self, request: Request, reply: Reply) -> None:
        """Send the reply. One that the client cannot take is an error for the caller; if its topic
        or partition is at fault, the caller gets none: the request is done nevertheless, because
        handling it again would not help."""
        assert request.reply_topic is not None
        if not self._may_reply_to(request.reply_topic):
            self._give_up(request.reply_topic, "not among the server's reply_topics")
            return
        try:
            self._produce(request, reply)
        except (KafkaException, ValueError, TypeError) as error:
            if reply.error is not None:
                self._give_up(request.reply_topic, str(error))
                return
            self.failed += 1
            failure = Reply(None, error)
            self._memory.put(request.correlation_id, failure)
            self._send(request, failure)

    def _may_reply_to(self, topic: str) -> bool:
        if topic.startswith(INTERNAL_PREFIX):
            return False
        return any(fnmatchcase(topic, pattern) for pattern in self._reply_topics)

    def _produce(self, request: Request, reply: Reply) -> None:
        assert request.reply_topic is not None
        assert request.correlation_id is not None
        partition = request.reply_partition
        while True:
            try:
                self._producer.produce(
                    request.reply_topic,
                    value=reply.value,
                    key=request.key,
                    partition=ANY_PARTITION if partition is None else partition,
                    headers=list(reply_headers(request.correlation_id, reply.error)),
                    on_delivery=self._delivered,
                )
                return
            except BufferError:
                self._producer.flush(FLUSH_SECONDS)

    def _give_up(self, topic: str, reason: str) -> None:
        self.unanswered += 1
        logger.warning("%s: a reply to %r is not sent: %s", self.topic, topic, reason)

    def _delivered(self, error: Any, message: Message) -> None:
        if error is not None and error.retriable():
            self._lost.append(error)
        elif error is not None:
            # A reply topic that does not exist: handling the request again would not help.
            self._give_up(message.topic() or "", error.str())


def _checked(value: object) -> bytes | str | None:
    """What a function returned, if a reply can have it."""
    if value is None or isinstance(value, bytes | str):
        return value
    raise TypeError(f"the function returned {type(value).__name__}, not bytes, str or None")


class _GroupIntake:
    """Requests as a member of a consumer group."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._consumer = Consumer(
            {
                **settings,
                "auto.offset.reset": "earliest",
                "enable.auto.offset.store": False,
                "fetch.wait.max.ms": 100,
            }
        )

    def subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic])

    def poll(self) -> list[Message]:
        first = self._consumer.poll(POLL_SECONDS)
        if first is None:
            return []
        found = [first, *self._consumer.consume(BATCH, 0)]
        return [it for it in found if it.error() is None]

    def accept(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._consumer.store_offsets(message)

    def release(self, messages: Sequence[Message]) -> None:
        first: dict[tuple[str, int], int] = {}
        for it in messages:
            first.setdefault((it.topic(), it.partition()), it.offset())
        for (topic, partition), offset in first.items():
            self._consumer.seek(TopicPartition(topic, partition, offset))

    def close(self) -> None:
        self._consumer.close()


class _ShareIntake:
    """Requests as a member of a share group."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._consumer = ShareConsumer({**settings, "share.acknowledgement.mode": "explicit"})

    def subscribe(self, topic: str) -> None:
        self._consumer.subscribe([topic])

    def poll(self) -> list[Message]:
        return [it for it in self._consumer.poll(POLL_SECONDS) if it.error() is None]

    def accept(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._consumer.acknowledge(message)
        self._consumer.commit_async()

    def release(self, messages: Sequence[Message]) -> None:
        from confluent_kafka import AcknowledgeType

        for message in messages:
            self._consumer.acknowledge(message, AcknowledgeType.RELEASE)
        self._consumer.commit_async()

    def close(self) -> None:
        self._consumer.close()
