"""The server's side: a plain function, called for each request of a topic.

The servers of a topic are members of a group, or of a share group, in which requests of one
partition are spread over all servers.

A request that is sent again gets the reply that it had, without another call of the function: from
any server of the group, also after a restart. In a consumer group the reply, the record of it and
the position among the requests are one transaction. What the function itself does elsewhere is not
in it: a server that crashes after the function, and before the transaction, calls it again. If it
must not run twice, use the request's correlation id.

A request whose deadline has passed is skipped: nobody waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Self

from confluent_kafka import Message

from millstream.client.cluster import Cluster
from millstream.errors import ApiError
from millstream.rpc.answered import SUFFIX, AnsweredLog
from millstream.rpc.delivering import Answer, PlainDelivery, Refused, TransactionalDelivery
from millstream.rpc.headers import Failure, Request, parse_request
from millstream.rpc.intakes import GroupIntake, ShareIntake
from millstream.rpc.replies import Reply, ReplyMemory
from millstream.rpc.settings import (
    REPLIES_SUFFIX,
    client_settings,
    create_request_topic,
    make_cluster,
    message_bytes_max,
    start_share_group_at_the_beginning,
)

REMEMBER_SECONDS = 600.0
DELIVER_SECONDS = 0.005  # so long do replies wait for those of the next requests
PAUSE_SECONDS = 1.0  # after a failure
PARTITIONS_SECONDS = 10.0  # how soon a reply topic that is created or grows is noticed
INTERNAL_PREFIX = "__"

logger = logging.getLogger(__name__)

Handler = Callable[[Request], bytes | str | None]


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
        remember_seconds: float = REMEMBER_SECONDS,
        reply_topics: Sequence[str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`remember_seconds`: for how long a request that is sent again gets its first reply from
        the group; replies are kept in the topic GROUP-answered. 0: only this process remembers
        them, and replies are sent without transactions, which is faster.

        `reply_topics`: patterns of the topics to which replies may go, TOPIC-replies if none are
        given: callers name the topic, and the server writes with its own rights."""
        self.topic, self.group = topic, group or f"{topic}-servers"
        self.handled = self.failed = self.expired = self.repeated = self.unanswered = 0
        self.problem: str | None = None  # why it does not serve at the moment
        self._reply_topics = (
            (f"{topic}{REPLIES_SUFFIX}",) if reply_topics is None else tuple(reply_topics)
        )
        self._handler = handler
        self._memory = ReplyMemory((remember_seconds or REMEMBER_SECONDS) * 1000)
        self._undelivered: dict[bytes, Reply] = {}  # the function ran, and nobody knows it yet
        self._partition_counts: dict[str, tuple[int, float]] = {}  # of reply topics, and when
        given = client_settings(bootstrap_servers, settings)
        self._reply_bytes_max = message_bytes_max(given)
        self._cluster = make_cluster(bootstrap_servers, settings)
        create_request_topic(self._cluster, topic)
        self._log: AnsweredLog | None = None
        if remember_seconds:
            self._log = AnsweredLog.create(
                self._cluster, f"{self.group}{SUFFIX}", topic, remember_seconds
            )
        self._intake: GroupIntake | ShareIntake
        self._delivery: PlainDelivery | TransactionalDelivery
        membership = {**given, "group.id": self.group}
        if share:
            start_share_group_at_the_beginning(self._cluster, self.group)
            self._intake = ShareIntake(membership)
            self._delivery = PlainDelivery(given, self._log)
        else:
            self._intake = GroupIntake(
                membership, transactional=self._log is not None, on_lost=self._undelivered.clear
            )
            self._delivery = (
                PlainDelivery(given, None)
                if self._log is None
                else TransactionalDelivery(given, self._log, self._intake, self.group)
            )
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
        if self._thread.ident is None:  # never started
            self._intake.close()
            self._cluster.close()
        elif self._thread.is_alive():
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
            self._delivery.close()
            self._intake.close()
            self._cluster.close()

    def _turn(self) -> None:
        messages = self._intake.poll()
        if messages:
            self._answer_all(messages)

    def _answer_all(self, messages: Sequence[Message]) -> None:
        """Answer these; what is not delivered is got again."""
        delivered = 0
        try:
            self._learn(messages)
            answers: list[Answer] = []
            deliver_at = time.monotonic() + DELIVER_SECONDS
            for message in messages:
                answers.append(self._answer(message))
                is_last = delivered + len(answers) == len(messages)
                if is_last or time.monotonic() >= deliver_at:
                    self._deliver(answers)
                    delivered += len(answers)
                    answers = []
                    deliver_at = time.monotonic() + DELIVER_SECONDS
        except BaseException:
            self._intake.release(messages[delivered:])
            if isinstance(self._intake, ShareIntake):
                self._undelivered.clear()  # another server may get these requests
            raise

    def _learn(self, messages: Sequence[Message]) -> None:
        """Find out what other servers have answered."""
        partitions = self._intake.to_learn(messages)
        if self._log is not None and partitions:
            now_ms = time.time() * 1000
            self._log.catch_up(
                partitions,
                lambda key, reply, given_at_ms: self._memory.put(key, reply, given_at_ms, now_ms),
            )
        self._intake.learned(partitions)

    def _answer(self, message: Message) -> Answer:
        request = parse_request(message.value(), message.key(), message.headers() or [])
        now_ms = time.time() * 1000
        if request.deadline_ms is not None and now_ms > request.deadline_ms:
            self.expired += 1
            return Answer(message, request, None)
        id_ = request.correlation_id
        reply = self._memory.get(id_, now_ms)
        is_new = reply is None
        if reply is None and id_ is not None:
            reply = self._undelivered.get(id_)
        if reply is None:
            reply = self._handle(request)
            if id_ is not None:
                self._undelivered[id_] = reply
        else:
            self.repeated += 1
        return Answer(message, request, reply, is_new, self._is_sent(request))

    def _handle(self, request: Request) -> Reply:
        try:
            reply = Reply(_checked(self._handler(request), self._reply_bytes_max))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self.failed += 1
            logger.warning("%s: a request failed: %s", self.topic, error)
            return Reply(None, Failure.of(error))
        self.handled += 1
        return reply

    # Delivery

    def _deliver(self, answers: Sequence[Answer]) -> None:
        """Write the replies. One that brokers refuse is given up: its request is done nevertheless,
        because handling it again would not help."""
        try:
            self._delivery.deliver(answers)
        except Refused as error:
            if len(answers) > 1:
                for it in answers:
                    self._deliver([it])
                return
            (answer,) = answers
            self._give_up(answer.request.reply_topic or "", str(error))
            answers = [Answer(answer.message, answer.request, None)]
            self._delivery.deliver(answers)
        self._intake.accept([it.message for it in answers])
        now_ms = time.time() * 1000
        for it in answers:
            if it.request.correlation_id is not None:
                self._undelivered.pop(it.request.correlation_id, None)
                if it.reply is not None:
                    self._memory.put(it.request.correlation_id, it.reply, now_ms, now_ms)

    def _is_sent(self, request: Request) -> bool:
        """Whether the reply can go where the request says."""
        if not request.wants_reply:
            return False
        assert request.reply_topic is not None
        problem = self._problem_with(request.reply_topic, request.reply_partition)
        if problem is not None:
            self._give_up(request.reply_topic, problem)
        return problem is None

    def _problem_with(self, topic: str, partition: int | None) -> str | None:
        may = any(fnmatchcase(topic, pattern) for pattern in self._reply_topics)
        if not may or topic.startswith(INTERNAL_PREFIX):
            return "not among the server's reply_topics"
        count, looked_up_at = self._partition_counts.get(topic, (0, float("-inf")))
        is_known = count > 0 and (partition or 0) < count
        if not is_known and time.monotonic() - looked_up_at > PARTITIONS_SECONDS:
            count = _partition_count(self._cluster, topic)
            self._partition_counts[topic] = count, time.monotonic()
        if count == 0:
            return "there is no such topic"
        if partition is not None and not 0 <= partition < count:
            return f"it has {count} partitions, and no {partition}"
        return None

    def _give_up(self, topic: str, reason: str) -> None:
        self.unanswered += 1
        logger.warning("%s: a reply to %r is not sent: %s", self.topic, topic, reason)


def _partition_count(cluster: Cluster, topic: str) -> int:
    """0 if there is no such topic."""
    try:
        found = cluster.retrying(lambda: cluster.refresh([topic]))
    except ApiError:  # a name that no topic can have
        return 0
    return len(found[topic].partitions) if topic in found else 0


def _checked(value: object, bytes_max: int) -> bytes | None:
    """What a function returned, if a reply can have it."""
    if isinstance(value, str):
        value = value.encode()
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"the function returned {type(value).__name__}, not bytes, str or None")
    if value is not None and len(value) > bytes_max:
        raise ValueError(f"the reply has {len(value)} bytes, more than {bytes_max}")
    return value
