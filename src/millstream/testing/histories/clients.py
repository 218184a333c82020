"""The clients of the workload: threads that use a cluster and record their operations.

Each is recreated several times: a client that fails, or at random, is dropped and a new
one made in its place, as a new process of the history. Whatever a client handed to Kafka is
recorded, however it ended, with what the client can know for certain:

- a record without an answer may be in the log or not (info)
- a transaction that was never asked to be committed must never be seen (fail), even if its abort
  failed or it was left lying
- once its commit was asked for, only the answer that it is committed says more than info
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from millstream.errors import MillstreamError
from millstream.testing.histories.history import History, Kind, Operation, Outcome, Read, Send

ANSWER_SECONDS_MAX = 60.0
STEP_SECONDS_MAX = 10.0
FINAL_READ_SECONDS_MAX = 60.0
HURRY_S = 0.002
TRANSACTION_TIMEOUT_MS = 15_000
POLL_S = 0.2
BACK_OFF_S = 0.2
NEVER_SENT = {KafkaError._PURGE_QUEUE, KafkaError.MSG_SIZE_TOO_LARGE}

IMPATIENT: dict[str, Any] = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 200,
    "socket.timeout.ms": 10_000,
    # With "rebootstrap", the default of librdkafka 2.16, send_offsets_to_transaction may block for
    # ever when a lone broker dies.
    "metadata.recovery.strategy": "none",
    "logger": logging.getLogger(__name__),  # else fatal errors, expected here, go to stderr
    "error_cb": lambda error: None,
}
logging.getLogger(__name__).addHandler(logging.NullHandler())


@dataclass
class Scene:
    """Shared state of all clients of a run."""

    config: dict[str, Any]
    prefix: str
    partitions: int
    seed: int
    rate: float  # operations a second of each client, at most
    history: History = field(default_factory=History)
    values: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def inputs(self) -> str:
        """The topic that producers write and workers read."""
        return f"{self.prefix}-in"

    @property
    def outputs(self) -> str:
        return f"{self.prefix}-out"

    @property
    def places(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic, index)
            for topic in (self.inputs, self.outputs)
            for index in range(self.partitions)
        ]

    def producer(self, **settings: Any) -> Producer:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        idempotent = {"enable.idempotence": True, "acks": "all", "linger.ms": 2}
        return Producer(IMPATIENT | idempotent | self.config | named)

    def transactional_producer(self, client: str, **settings: Any) -> Producer:
        return self.producer(
            transactional_id=f"{self.prefix}-{client}",
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            message_timeout_ms=TRANSACTION_TIMEOUT_MS - 1000,
            **settings,
        )

    def consumer(self, group: str, **settings: Any) -> Consumer:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        committed = {
            "group.id": f"{self.prefix}-{group}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
        return Consumer(IMPATIENT | committed | self.config | named)


def partition_name(place: TopicPartition) -> str:
    return f"{place.topic}-{place.partition}"


class Client(threading.Thread):
    """One of the actors; `live` runs until it must be recreated."""

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.scene = scene
        self.dice = random.Random(f"{name} {scene.seed}")
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self.lives = 0
        self._recording = threading.Lock()
        self._is_abandoned = False

    @property
    def process(self) -> str:
        return f"{self.name}.{self.lives}"

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.lives += 1
                try:
                    self.live()
                except (KafkaException, Vanished, SystemError) as error:
                    # A fatal error of the client, if it calls its logger before it returns.
                    is_fatal = isinstance(error.__cause__, KafkaException)
                    if isinstance(error, SystemError) and not is_fatal:
                        raise
                    self.stopping.wait(BACK_OFF_S)
        except Exception as error:  # noqa: BLE001 - raised by the thread that joins this one
            self.failure = error

    def live(self) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        self.stopping.wait(self.dice.expovariate(self.scene.rate))

    def record(self, kind: Kind, began_ns: int, **fields: Any) -> None:
        ended_ns = time.monotonic_ns()
        operation = Operation(
            process=self.process, kind=kind, began_ns=began_ns, ended_ns=ended_ns, **fields
        )
        with self._recording:
            if not self._is_abandoned:
                self.scene.history.record(operation)

    def abandon(self) -> None:
        """Stop waiting for it: librdkafka may block forever after a broker was killed.

        Its current operation is recorded as it is; later ones are not.
        """
        self.record_unfinished()
        with self._recording:
            self._is_abandoned = True

    def record_unfinished(self) -> None:
        """For those who may block with something in hand."""


class Batch:
    """Records sent together, with the result of each."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.places: list[tuple[str, int]] = []  # (partition, value), in the order of sending
        self.offsets: dict[int, int | None] = {}
        self.errors: dict[int, KafkaError] = {}

    def send(self, producer: Producer, topic: str, partition: int, **fields: Any) -> None:
        """`fields` are the key and the headers, if any."""
        value = next(self.scene.values)
        self.places.append((f"{topic}-{partition}", value))
        try:
            producer.produce(
                topic,
                b"%d" % value,
                partition=partition,
                on_delivery=lambda error, message: self.on_delivery(value, error, message),
                **fields,
            )
        except (BufferError, KafkaException) as error:
            self.errors[value] = KafkaError(KafkaError._PURGE_QUEUE)
            if isinstance(error, KafkaException):
                raise

    def on_delivery(self, value: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors[value] = error
            return
        offset = message.offset()
        self.offsets[value] = offset if offset is not None and offset >= 0 else None

    @property
    def sends(self) -> list[Send]:
        return [Send(place, value, self.offsets.get(value)) for place, value in self.places]

    @property
    def outcome(self) -> Outcome:
        """Of the records that have no offset to prove that they are there."""
        open_values = [value for _, value in self.places if value not in self.offsets]
        if not open_values:
            return Outcome.OK
        codes = [
            self.errors[value].code() if value in self.errors else None for value in open_values
        ]
        return Outcome.FAIL if all(code in NEVER_SENT for code in codes) else Outcome.INFO

    @property
    def error(self) -> str:
        return next((error.str() for error in self.errors.values()), "")


class Writer(Client):
    """An idempotent producer outside of transactions."""

    batch: Batch | None = None
    began_ns = 0

    def live(self) -> None:
        producer = self.scene.producer(message_timeout_ms=int(ANSWER_SECONDS_MAX * 1000))
        while not self.stopping.is_set():
            self.batch = batch = Batch(self.scene)
            self.began_ns = time.monotonic_ns()
            try:
                for _ in range(self.dice.randint(1, 10)):
                    partition = self.dice.randrange(self.scene.partitions)
                    batch.send(producer, self.scene.inputs, partition)
                producer.flush(ANSWER_SECONDS_MAX + 5)
            finally:
                self.record_unfinished()
            if batch.outcome is not Outcome.OK:
                return
            self.pause()

    def record_unfinished(self) -> None:
        batch, self.batch = self.batch, None
        if batch is not None:
            self.record(
                Kind.SEND,
                self.began_ns,
                outcome=batch.outcome,
                sends=batch.sends,
                error=batch.error,
            )


@dataclass
class Attempt:
    """An open transaction."""

    batch: Batch
    began_ns: int
    fields: dict[str, Any]
    commit_ns: int | None = None
    is_committed: bool = False
    error: str = ""

    @property
    def outcome(self) -> Outcome:
        """The certain outcome: invisible before its commit was requested."""
        if self.is_committed:
            return Outcome.OK
        return Outcome.FAIL if self.commit_ns is None else Outcome.INFO


class TransactionalClient(Client):
    """What transactors and workers share: how a transaction begins and how it may end."""

    producer: Producer
    attempt: Attempt | None = None

    def init_transactions(self) -> None:
        # Some ask again over a new connection while a broker only pauses: it gets to see both.
        wait_ms = self.dice.choice([1000, 10_000])
        self.producer = self.scene.transactional_producer(self.name, socket_timeout_ms=wait_ms)
        persist(self.producer.init_transactions)

    def transact(self, fill: Callable[[Batch], None], **fields: Any) -> Outcome:
        """One transaction; `fill` sends its records. Returns what became of it, and raises where
        the producer cannot go on."""
        self.attempt = attempt = Attempt(Batch(self.scene), time.monotonic_ns(), fields)
        try:
            self.producer.begin_transaction()
            fill(attempt.batch)
            self.end(attempt)
        except KafkaException as error:
            attempt.error = error.args[0].str()
            if attempt.commit_ns is not None or not error.args[0].txn_requires_abort():
                raise
            persist(self.producer.abort_transaction)
        finally:
            self.record_unfinished()
        return attempt.outcome

    def record_unfinished(self) -> None:
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            self.record(
                Kind.TXN,
                attempt.began_ns,
                outcome=attempt.outcome,
                commit_ns=attempt.commit_ns,
                sends=attempt.batch.sends,
                error=attempt.error,
                **attempt.fields,
            )

    def end(self, attempt: Attempt) -> None:
        """Usually commit; sometimes abort, or exit before or after the request."""
        ending = self.dice.choices(["commit", "abort", "vanish", "hurry"], [15, 3, 1, 1])[0]
        if self.dice.random() < 0.5:
            self.producer.flush(ANSWER_SECONDS_MAX)  # else the commit does it
        if ending == "vanish":
            raise Vanished
        if ending == "abort" or attempt.batch.errors:
            persist(self.producer.abort_transaction)
            return
        attempt.commit_ns = time.monotonic_ns()
        if ending == "hurry":
            self.producer.commit_transaction(HURRY_S)
        else:
            persist(self.producer.commit_transaction)
        attempt.is_committed = True


class Vanished(Exception):
    """This client exits at random, whatever it was doing."""


def persist(step: Callable[[float], object]) -> None:
    """Retry retriable errors until success or timeout."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while True:
        try:
            step(STEP_SECONDS_MAX)
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


class Transactor(TransactionalClient):
    """A producer whose transactions span partitions of both topics."""

    def live(self) -> None:
        self.init_transactions()
        while not self.stopping.is_set():
            self.transact(self.fill)
            self.pause()

    def fill(self, batch: Batch) -> None:
        for _ in range(self.dice.randint(1, 8)):
            topic = self.dice.choice([self.scene.inputs, self.scene.outputs])
            batch.send(self.producer, topic, self.dice.randrange(self.scene.partitions))
            if self.dice.random() < 0.05:
                self.pause()


class ConsumingClient(Client):
    """What clients with a consumer share: reading, and noticing that they were moved."""

    consumer: Consumer

    def __init__(self, scene: Scene, name: str) -> None:
        super().__init__(scene, name)
        self.moved: list[str] = []

    def subscribe(self, topics: list[str]) -> None:
        self.consumer.subscribe(
            topics, on_assign=self.on_moved, on_revoke=self.on_moved, on_lost=self.on_moved
        )

    def on_moved(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        self.moved += [partition_name(place) for place in places]

    def poll(self) -> tuple[list[Read], list[str]]:
        """Some records, and the partitions that were moved meanwhile."""
        self.moved = []
        messages = self.consumer.consume(self.dice.randint(1, 30), timeout=POLL_S)
        return [as_read(message) for message in messages if message.error() is None], self.moved


def as_read(message: Message) -> Read:
    return Read(f"{message.topic()}-{message.partition()}", message.offset(), int(message.value()))


def as_place(partition: str, offset: int) -> TopicPartition:
    topic, _, index = partition.rpartition("-")
    return TopicPartition(topic, int(index), offset)


def positions_after(reads: Sequence[Read]) -> list[TopicPartition]:
    """The positions after these reads."""
    after = {read.partition: read.offset + 1 for read in reads}
    return [as_place(partition, offset) for partition, offset in after.items()]


def positions_before(reads: Sequence[Read]) -> list[TopicPartition]:
    """The positions to read these again."""
    before = {read.partition: read.offset for read in reversed(reads)}
    return [as_place(partition, offset) for partition, offset in before.items()]


def read_to_end(scene: Scene, group: str, places: Sequence[TopicPartition]) -> Iterator[list[Read]]:
    """All records of partitions from the beginning. Raises `MillstreamError` if it takes long."""
    consumer = scene.consumer(group, enable_partition_eof=True)
    unread = {partition_name(place) for place in places}
    deadline = time.monotonic() + FINAL_READ_SECONDS_MAX
    try:
        consumer.assign([as_place(partition, 0) for partition in sorted(unread)])
        while unread and time.monotonic() < deadline:
            messages = consumer.consume(1000, timeout=POLL_S)
            yield [as_read(message) for message in messages if message.error() is None]
            for message in messages:
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(f"{message.topic()}-{message.partition()}")
    finally:
        consumer.close()
    if unread:
        raise MillstreamError(f"{', '.join(sorted(unread))} could not be read to the end")


class Follower(ConsumingClient):
    """A member of a group that commits its offsets, and joins and leaves."""

    def __init__(self, scene: Scene, name: str, group: str, protocol: str) -> None:
        super().__init__(scene, name)
        self.group = group
        self.protocol = protocol

    def live(self) -> None:
        self.consumer = self.scene.consumer(self.group, group_protocol=self.protocol)
        try:
            self.subscribe([self.scene.inputs, self.scene.outputs])
            while not self.stopping.is_set() and self.dice.random() > 0.01:
                began_ns = time.monotonic_ns()
                reads, moved = self.poll()
                if reads or moved:
                    self.record(Kind.POLL, began_ns, reads=reads, moved=moved, group=self.group)
                if reads and self.dice.random() < 0.8:
                    self.commit(reads)
        finally:
            self.consumer.close()

    def commit(self, reads: Sequence[Read]) -> None:
        """A failed commit is harmless: the records are delivered again."""
        with contextlib.suppress(KafkaException):
            self.consumer.commit(
                offsets=positions_after(reads), asynchronous=self.dice.random() < 0.5
            )


class Worker(ConsumingClient, TransactionalClient):
    """Consumes, transforms and produces, and commits offsets in the same transaction."""

    def __init__(self, scene: Scene, name: str, group: str, protocol: str) -> None:
        super().__init__(scene, name)
        self.group = group
        self.protocol = protocol

    def live(self) -> None:
        self.consumer = self.scene.consumer(self.group, group_protocol=self.protocol)
        try:
            self.init_transactions()
            self.subscribe([self.scene.inputs])
            while not self.stopping.is_set() and self.dice.random() > 0.005:
                reads, moved = self.poll()
                if reads:
                    self.work(reads, moved)
                elif moved:
                    self.record(Kind.POLL, time.monotonic_ns(), moved=moved)
        finally:
            self.consumer.close()

    def work(self, reads: Sequence[Read], moved: Sequence[str]) -> None:
        def fill(batch: Batch) -> None:
            for _ in reads:
                partition = self.dice.randrange(self.scene.partitions)
                batch.send(self.producer, self.scene.outputs, partition)
            group = self.consumer.consumer_group_metadata()
            offsets = positions_after(reads)
            persist(
                lambda seconds: self.producer.send_offsets_to_transaction(offsets, group, seconds)
            )

        outcome = self.transact(fill, reads=reads, moved=moved, group=self.group)
        if outcome is not Outcome.OK:
            for place in positions_before(reads):
                self.consumer.seek(place)
            sought = sorted({read.partition for read in reads})
            self.record(Kind.POLL, time.monotonic_ns(), moved=sought)


class Browser(ConsumingClient):
    """A consumer without a group that seeks at random."""

    def live(self) -> None:
        self.consumer = self.scene.consumer(self.name)
        try:
            began_ns = time.monotonic_ns()
            places = self.scene.places
            self.consumer.assign([as_place(partition_name(place), 0) for place in places])
            self.record(Kind.POLL, began_ns, moved=[partition_name(place) for place in places])
            while not self.stopping.is_set():
                began_ns = time.monotonic_ns()
                reads, _ = self.poll()
                if reads:
                    self.record(Kind.POLL, began_ns, reads=reads)
                if reads and self.dice.random() < 0.02:
                    self.jump(self.dice.choice(reads))
        finally:
            self.consumer.close()

    def jump(self, read: Read) -> None:
        """Go back to somewhere in a partition."""
        self.consumer.seek(as_place(read.partition, self.dice.randint(0, read.offset)))
        self.record(Kind.POLL, time.monotonic_ns(), moved=[read.partition])
