"""Backlog policies with the clients that people use, with workers, and across kill -9."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from millstream.errors import ErrorCode
from tests.conformance.conftest import prepared
from tests.peers.patience import PATIENCE_SECONDS, wait_until
from tests.peers.programs import Record
from tests.peers.servers import Server, free_port, start_millstream, start_workers
from tests.peers.wire import Wire, batch, produce_fields

SETTINGS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}
BOUND = 10_000
QUICK = ("confluent", "kafka-python", "aiokafka")
OTHERS = ("java", "java-3.9", "kcat", "kafkajs", "franz-go")
NUMBERS = itertools.count()


def client_names() -> list[Any]:
    return [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    started = start_millstream(tmp_path_factory.mktemp("slow") / "data", SETTINGS)
    yield started
    started.kill()


def send(bootstrap: str, topic: str) -> Any:
    """The answer to a record of 1 KB, which is held for at most 100 ms."""
    fields = produce_fields(topic, batch([b"x" * 1000])) | {"timeout": 200}
    with Wire(bootstrap) as wire:
        return wire.call("produce", 9, **fields).responses[0].partition_responses[0]


def new_topic(bootstrap: str, policy: str) -> tuple[str, str]:
    """A topic with the policy, and the name of the group that counts."""
    topic = f"{policy}-{next(NUMBERS)}"
    group = f"readers-of-{topic}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {
        "millstream.backlog.policy": policy,
        "millstream.backlog.bytes": str(BOUND),
        "millstream.backlog.groups": group,
    }
    admin.create_topics([NewTopic(topic, 1, config=settings)])[topic].result(PATIENCE_SECONDS)
    return topic, group


def full_topic(bootstrap: str, policy: str) -> tuple[str, str]:
    """A topic to which the policy applies, and the group that has read nothing of it."""
    topic, group = new_topic(bootstrap, policy)
    assert send(bootstrap, topic).error_code == 0
    commit(bootstrap, group, topic, 0)
    codes = {"hold": ErrorCode.NOT_ENOUGH_REPLICAS, "reject": ErrorCode.POLICY_VIOLATION}
    wait_until(lambda: send(bootstrap, topic).error_code == codes[policy])
    return topic, group


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def end_of(bootstrap: str, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = {TopicPartition(topic, 0): OffsetSpec.latest()}
    ((_, found),) = admin.list_offsets(asked).items()
    return int(found.result(PATIENCE_SECONDS).offset)


def read(bootstrap: str, topic: str, start: int, count: int) -> list[bytes | None]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "checking"})
    consumer.assign([TopicPartition(topic, 0, start)])
    messages = consumer.consume(count, PATIENCE_SECONDS)
    consumer.close()
    return [message.value() for message in messages]


@pytest.mark.parametrize("name", client_names())
def test_producer_is_held_and_goes_on_without_an_error(name: str, server: Server) -> None:
    client = prepared(name)
    topic, group = full_topic(server.bootstrap, "hold")
    end = end_of(server.bootstrap, topic)
    records = [Record(partition=0, value=f"{number}".encode()) for number in range(20)]
    with ThreadPoolExecutor() as pool:
        produced = pool.submit(client.produce, server.bootstrap, topic, records)
        with pytest.raises(TimeoutError):
            produced.result(1)
        assert end_of(server.bootstrap, topic) == end
        commit(server.bootstrap, group, topic, end)
        produced.result(PATIENCE_SECONDS)
    assert end_of(server.bootstrap, topic) == end + len(records)
    found = read(server.bootstrap, topic, end, len(records))
    assert found == [record.value for record in records]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *OTHERS])
def test_producer_that_is_held_for_long_retries(name: str, server: Server) -> None:
    client = prepared(name)
    topic, group = full_topic(server.bootstrap, "hold")
    end = end_of(server.bootstrap, topic)
    with ThreadPoolExecutor() as pool:
        produced = pool.submit(
            client.produce, server.bootstrap, topic, [Record(partition=0, value=b"late")]
        )
        with pytest.raises(TimeoutError):
            produced.result(25)  # more than two holds
        commit(server.bootstrap, group, topic, end)
        produced.result(PATIENCE_SECONDS)
    assert read(server.bootstrap, topic, end, 1) == [b"late"]
    assert end_of(server.bootstrap, topic) == end + 1


@pytest.mark.parametrize("name", client_names())
def test_producer_is_rejected_at_once(name: str, server: Server) -> None:
    client = prepared(name)
    topic, _ = full_topic(server.bootstrap, "reject")
    end = end_of(server.bootstrap, topic)
    with pytest.raises(Exception, match=r"(?i)policy"):
        client.produce(server.bootstrap, topic, [Record(partition=0, value=b"no")])
    assert end_of(server.bootstrap, topic) == end


@pytest.mark.parametrize(
    "end_server",
    [
        pytest.param(Server.stop, id="stopped", marks=pytest.mark.slow),
        pytest.param(Server.kill, id="killed"),
    ],
)
def test_held_batch_is_appended_once_after_a_restart(tmp_path: Path, end_server: Any) -> None:
    port = free_port()
    server = start_millstream(tmp_path / "data", SETTINGS, port=port)
    try:
        topic, group = full_topic(server.bootstrap, "hold")
        end = end_of(server.bootstrap, topic)
        producer = Producer({"bootstrap.servers": server.bootstrap, "enable.idempotence": True})
        failures: list[Any] = []
        for number in range(30):
            producer.produce(
                topic,
                f"{number}",
                partition=0,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(1) == 30
        end_server(server)
        server = start_millstream(tmp_path / "data", SETTINGS, port=port)
        # The policy applies again, to what the group has committed before.
        held = ErrorCode.NOT_ENOUGH_REPLICAS
        wait_until(lambda: send(server.bootstrap, topic).error_code == held)
        commit(server.bootstrap, group, topic, end_of(server.bootstrap, topic))
        assert producer.flush(PATIENCE_SECONDS) == 0
        assert failures == []
        values = read(server.bootstrap, topic, 0, end_of(server.bootstrap, topic))
        assert [it for it in values if it is not None and len(it) < 10] == [
            f"{number}".encode() for number in range(30)
        ]
        assert end_of(server.bootstrap, topic) >= end + 30
    finally:
        server.kill()


@pytest.mark.slow
def test_dropped_records_stay_dropped_after_kill(tmp_path: Path) -> None:
    """Or are dropped again: what the group has lost is counted from its commit."""
    port = free_port()
    server = start_millstream(tmp_path / "data", SETTINGS, port=port)
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        settings = {"millstream.backlog.policy": "drop", "millstream.backlog.bytes": str(BOUND)}
        admin.create_topics([NewTopic("t", 1, config=settings)])["t"].result(PATIENCE_SECONDS)
        assert send(server.bootstrap, "t").error_code == 0
        commit(server.bootstrap, "g", "t", 0)
        for _ in range(30):
            assert send(server.bootstrap, "t").error_code == 0
        wait_until(lambda: start_of(server.bootstrap, "t") > 0)
        server.kill()
        server = start_millstream(tmp_path / "data", SETTINGS, port=port)
        wait_until(lambda: start_of(server.bootstrap, "t") >= 31 - BOUND // 1000)
        kept = read(server.bootstrap, "t", start_of(server.bootstrap, "t"), 1)
        assert kept == [b"x" * 1000]
    finally:
        server.kill()


def start_of(bootstrap: str, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = {TopicPartition(topic, 0): OffsetSpec.earliest()}
    ((_, found),) = admin.list_offsets(asked).items()
    return int(found.result(PATIENCE_SECONDS).offset)


def outcome(bootstrap: str, topic: str) -> str:
    """Of a record of 1 KB, sent by a client that finds the leader."""
    outcomes = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        outcomes.append("" if error is None else error.name())

    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"x" * 1000, on_delivery=delivered)
    assert producer.flush(PATIENCE_SECONDS) == 0
    (only,) = outcomes
    return only


@pytest.mark.slow
def test_policy_applies_with_workers(tmp_path: Path) -> None:
    """A group's coordinator is one worker, and the leader of a partition may be the other one."""
    server = start_workers(tmp_path / "data", 2, SETTINGS)
    bootstrap = server.bootstrap
    try:
        for _ in range(3):  # groups and partitions are spread by their names
            topic, group = new_topic(bootstrap, "reject")
            assert outcome(bootstrap, topic) == ""
            commit(bootstrap, group, topic, 0)
            wait_until(lambda topic=topic: outcome(bootstrap, topic) == "POLICY_VIOLATION")
            commit(bootstrap, group, topic, end_of(bootstrap, topic))
            wait_until(lambda topic=topic: outcome(bootstrap, topic) == "")
    finally:
        server.kill()


@pytest.mark.slow
def test_two_groups_hold_until_both_have_caught_up(server: Server) -> None:
    topic, group = full_topic(server.bootstrap, "hold")
    other = f"{group}-2"
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    commit(server.bootstrap, other, topic, 0)
    change = ConfigEntry(
        "millstream.backlog.groups",
        f"{group},{other}",
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)
    end = end_of(server.bootstrap, topic)
    commit(server.bootstrap, group, topic, end)
    wait_until(lambda: f"group {other} has" in (send(server.bootstrap, topic).error_message or ""))
    commit(server.bootstrap, other, topic, end_of(server.bootstrap, topic))
    wait_until(lambda: send(server.bootstrap, topic).error_code == 0)


def test_log_has_a_line_for_each_change(server: Server) -> None:
    topic, _ = full_topic(server.bootstrap, "reject")
    log = server.data.with_name(server.data.name + ".log")
    text = log.read_text()
    assert f"{topic}-0 rejects producers: group readers-of-{topic} has " in text
    assert text.count(f"{topic}-0 rejects producers") == 1
