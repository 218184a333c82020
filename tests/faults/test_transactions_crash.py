"""kill -9 at every step of a transaction's end: it is all or nothing, and nothing is left hanging.

The steps of an end are writes and flushes: the decision (prepare), the answer, a marker for each
partition, the note that all is done (complete). `strace` kills the server at the n-th of these
system calls after the EndTxn was sent, for n from 1 until the server outlives them all.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from tests.conformance.brokers import BrokerUnderTest, unique
from tests.conformance.test_transactions import committed_offsets, stable_offset
from tests.conformance.test_transactions_offsets import NO_OFFSET, is_unstable, offset_of
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.servers import Server, free_port, start_millstream
from tests.peers.transactional import NO_ERROR, TransactionalProducer, describe_transactions
from tests.peers.wire import ConnectionEnded

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}
PARTITIONS = 3
RECORDS = 2
STEPS = "write,writev,pwrite64,pwritev,pwritev2,fdatasync,fsync,sendto,sendmsg"
STEPS_MAX = 60

needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="`strace` is not installed: `apt-get install strace`"
)


class Crashing:
    """A server that is killed and started again on the same data and port."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self.server = self._start()

    @property
    def broker(self) -> BrokerUnderTest:
        return BrokerUnderTest(self.server)

    def restart(self) -> None:
        self.server.kill()
        self.server = self._start()

    def _start(self) -> Server:
        return start_millstream(self._directory / "data", SETTINGS, port=self._port)


@pytest.fixture
def crashing(tmp_path: Path) -> Iterator[Crashing]:
    made = Crashing(tmp_path)
    yield made
    made.server.kill()


class Killer:
    """strace, attached to a server, which it kills at the n-th step of any of its threads."""

    def __init__(self, server: Server, step: int, log: Path) -> None:
        inject = f"inject={STEPS}:signal=SIGKILL:when={step}"
        command = ["strace", "-f", "-p", str(server.process.pid), "-e", f"trace={STEPS}"]
        self._process = subprocess.Popen(
            [*command, "-e", inject, "-o", str(log)], stderr=subprocess.PIPE, text=True
        )
        assert self._process.stderr is not None
        said = self._process.stderr.readline()
        if "attached" not in said:
            pytest.skip(f"strace cannot attach: {said}")

    def leave(self) -> None:
        """Killed itself: it may hold on to a dead server's threads, which then stays a zombie."""
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        assert self._process.stderr is not None
        self._process.stderr.close()


def open_transaction(
    broker: BrokerUnderTest, protocol: int, topic: str, group: str
) -> TransactionalProducer:
    """Records in every partition and an offset, ready to end."""
    producer = TransactionalProducer(broker.bootstrap, unique("transactional"), protocol=protocol)
    assert producer.init() == NO_ERROR
    producer.begin(topic, *range(PARTITIONS))
    for index in range(PARTITIONS):
        values = [b"x"] * RECORDS
        assert producer.produce(topic, values, partition=index).error_code == NO_ERROR
    if protocol == 1:
        assert producer.add_offsets(group) == NO_ERROR
    assert producer.commit_offset(group, topic, 7) == NO_ERROR
    return producer


def outcome(broker: BrokerUnderTest, topic: str, group: str) -> set[bool]:
    """Whether it was committed, by every partition and by the offset: one answer, or it is torn."""
    for index in range(PARTITIONS):
        wait_until(lambda index=index: stable_offset(broker, topic, index) > RECORDS)
    wait_until(lambda: not is_unstable(broker, group, topic))
    seen = {offset_of(broker, group, topic) != NO_OFFSET}
    for index in range(PARTITIONS):
        offsets = committed_offsets(broker, topic, index)
        assert offsets in ([], list(range(RECORDS)))
        seen.add(bool(offsets))
    return seen


def end_and_kill(crashing: Crashing, producer: TransactionalProducer, step: int, log: Path) -> Any:
    """(was the end acknowledged, did the server outlive it)"""
    killer = Killer(crashing.server, step, log)
    acknowledged = False
    try:
        acknowledged = producer.end(committed=True, patient=False).error_code == NO_ERROR
        pause_seconds = 0.05
        state = describe_transactions(crashing.server.bootstrap, producer.transactional_id)[0]
        while state.transaction_state != "CompleteCommit":
            time.sleep(pause_seconds)  # every answer is a step, too: on a slow disk, ask seldom
            pause_seconds *= 1.5
            (state,) = describe_transactions(crashing.server.bootstrap, producer.transactional_id)
        return acknowledged, True
    except (ConnectionEnded, OSError):
        return acknowledged, False
    finally:
        killer.leave()


@needs_strace
@pytest.mark.timeout(600)
@pytest.mark.parametrize("afterwards", ["end again", "successor"])
@pytest.mark.parametrize("protocol", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_transaction_is_all_or_nothing_wherever_the_server_is_killed(
    crashing: Crashing, tmp_path: Path, stride: int, protocol: int, afterwards: str
) -> None:
    """Its producer ends it again, and it is committed; or a successor finds it one or the other."""
    outcomes: list[bool] = []
    for step in range(1, STEPS_MAX, stride):
        topic, group = crashing.broker.create_topic(partitions=PARTITIONS), unique("group")
        producer = open_transaction(crashing.broker, protocol, topic, group)
        acknowledged, survived = end_and_kill(crashing, producer, step, tmp_path / "strace")
        crashing.restart()
        name, identity = producer.transactional_id, producer.identity
        with TransactionalProducer(crashing.server.bootstrap, name, protocol=protocol) as again:
            if afterwards == "successor" or survived:
                assert again.init() == NO_ERROR
            else:
                again.producer_id, again.producer_epoch = identity
                again.find_coordinator(name, 1)
                if not acknowledged:
                    assert again.end(committed=True).error_code == NO_ERROR
            (committed,) = outcome(crashing.broker, topic, group)
            assert committed or not (acknowledged or afterwards == "end again")
            outcomes.append(committed)
            assert again.init() == NO_ERROR
            again.run(topic, [b"next"], committed=True)
        if survived:
            break
    assert survived, "the server never outlived the end of a transaction"
    assert len(outcomes) * stride > 4, "too few steps to have hit all that there are"
    if afterwards == "successor":
        assert set(outcomes) == {True, False}, "killed only before, or only after the decision"


class Transformer:
    """Copies `source` to `target` exactly once, in a thread, whatever befalls the server."""

    def __init__(self, bootstrap: str, partition: int) -> None:
        self._common = {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            # librdkafka 2.16, when it starts over with a lone broker, waits for itself for ever
            "metadata.recovery.strategy": "none",
        }
        self._place = TopicPartition("source", partition)
        self._stop = threading.Event()
        self.committed = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._life()
        except BaseException as failure:  # noqa: BLE001 -- the test's thread shall raise it
            self.failure = failure

    def _life(self) -> None:
        """One producer and one consumer, until stopped or until a fatal error ends the producer."""
        producer = Producer(
            {**self._common, "transactional.id": f"transformer-{self._place.partition}"}
        )
        until_done(lambda: producer.init_transactions(30))
        consumer = Consumer(
            {**self._common, "group.id": "transformers", "isolation.level": "read_committed"}
        )
        try:
            self._rewind(consumer)
            while not self._stop.is_set():
                messages = [m for m in consumer.consume(20, 0.1) if m.error() is None]
                if messages and not self._transform(producer, consumer, messages):
                    self._rewind(consumer)
        except KafkaException as error:
            if not error.args[0].fatal():
                raise
        finally:
            consumer.close()

    def _transform(self, producer: Producer, consumer: Consumer, messages: list[Message]) -> bool:
        """One transaction; False if it had to be aborted."""
        try:
            producer.begin_transaction()
            for message in messages:
                producer.produce("target", message.value(), partition=message.partition())
            after = TopicPartition("source", self._place.partition, messages[-1].offset() + 1)
            metadata = consumer.consumer_group_metadata()
            until_done(lambda: producer.send_offsets_to_transaction([after], metadata, 30))
            until_done(lambda: producer.commit_transaction(30))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            until_done(lambda: producer.abort_transaction(30))
            return False
        self.committed += 1
        return True

    def _rewind(self, consumer: Consumer) -> None:
        (position,) = until_done(lambda: consumer.committed([self._place], timeout=30))
        start = position.offset if position.offset >= 0 else OFFSET_BEGINNING
        consumer.assign([TopicPartition("source", self._place.partition, start)])


def until_done(act: Any) -> Any:
    """Again and again while the client says that it may succeed yet."""
    while True:
        try:
            return act()
        except KafkaException as error:
            problem = error.args[0]
            transport = {KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN}
            if problem.fatal() or problem.txn_requires_abort():
                raise
            if not (problem.retriable() or problem.code() in transport):
                raise


def fill(bootstrap: str, numbers: range) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    for number in numbers:
        producer.produce("source", str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_SECONDS) == 0


def read_target(bootstrap: str, partition: int, count: int) -> list[int]:
    """What a read-committed reader finds, up to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("target", partition, 0)])
    numbers: list[int] = []
    try:
        while True:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"{len(numbers)} of {count}, then nothing"
            if message.error() is None:
                numbers.append(int(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return numbers
    finally:
        consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "rounds", [2, pytest.param(15, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_every_record_is_transformed_once_while_the_server_is_killed(
    crashing: Crashing, rounds: int
) -> None:
    dice = random.Random(rounds)
    bootstrap = crashing.server.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    topics = [NewTopic(name, PARTITIONS, 1) for name in ("source", "target")]
    for created in admin.create_topics(topics).values():
        created.result(PATIENCE_SECONDS)
    total = 0
    transformers = [Transformer(bootstrap, index) for index in range(PARTITIONS)]
    try:
        for _ in range(rounds):
            fill(bootstrap, range(total, total + 1500))
            total += 1500
            goal = [t.committed + dice.randrange(1, 15) for t in transformers]
            wait_until(
                lambda goal=goal: (
                    any(t.committed >= g for t, g in zip(transformers, goal, strict=True))
                    or any(t.failure for t in transformers)
                )
            )
            crashing.restart()
        broker = crashing.broker
        for index in range(PARTITIONS):
            wait_until(
                lambda index=index: (
                    any(t.failure for t in transformers)
                    or offset_of(broker, "transformers", "source", index) == total // PARTITIONS
                ),
                seconds_max=120,
            )
    finally:
        for transformer in transformers:
            transformer._stop.set()
        for transformer in transformers:
            transformer.finish()
    for index in range(PARTITIONS):
        count = total // PARTITIONS
        assert read_target(bootstrap, index, count) == list(range(index, total, PARTITIONS))
