"""`millstream transaction` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from tests.cli.conftest import Run
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.transactional import NO_ERROR, TransactionalProducer

Ok = Callable[..., str]


@pytest.fixture
def producer(bootstrap_servers: str, name: str) -> Producer:
    """A transactional producer named as the test, with a transaction begun."""
    producer = Producer(
        {"bootstrap.servers": bootstrap_servers, "transactional.id": name, "log_level": 0}
    )
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    return producer


def listed(ok: Ok, name: str, *options: str) -> list[dict[str, Any]]:
    rows = json.loads(ok("transaction", "list", "--json", *options))
    return [row for row in rows if row["transactional_id"] == name]


def committed_records(bootstrap_servers: str, topic: str, partition: int) -> list[bytes]:
    """What a reader of committed records sees up to the last stable offset."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "x", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    seen = []
    while (message := consumer.poll(PATIENCE_SECONDS)) is not None and message.error() is None:
        seen.append(message.value())
    consumer.close()
    return seen


def test_transaction_list_shows_states(ok: Ok, producer: Producer, topic: str, name: str) -> None:
    producer.produce(topic, b"v", partition=0)
    producer.flush()
    [row] = listed(ok, name)
    assert row["state"] == "Ongoing"
    assert listed(ok, name, "--state", "Ongoing") == [row]
    producer.commit_transaction(PATIENCE_SECONDS)
    assert listed(ok, name, "--state", "Ongoing") == []
    assert name in ok("transaction", "list")


def test_transaction_list_refuses_an_unknown_state(cli: Run) -> None:
    outcome = cli("transaction", "list", "--state", "Lost")
    assert outcome.exit_code == 2
    assert "known are Empty, Ongoing" in outcome.err


def test_transaction_describe_names_what_it_writes_to(
    ok: Ok, producer: Producer, topic: str, name: str
) -> None:
    producer.produce(topic, b"v", partition=0)
    producer.produce(topic, b"v", partition=2)
    producer.flush()
    found = json.loads(ok("transaction", "describe", name, "--json"))
    assert found["state"] == "Ongoing"
    assert found["partitions"] == [f"{topic}[0]", f"{topic}[2]"]
    assert found["timeout_ms"] == 60_000
    assert found["started_ms"] > 0
    assert f"{topic}[0], {topic}[2]" in ok("transaction", "describe", name)
    producer.abort_transaction(PATIENCE_SECONDS)


def test_transaction_describe_of_an_unknown_id_suggests(
    cli: Run, producer: Producer, topic: str, name: str
) -> None:
    producer.produce(topic, b"v")
    producer.flush()
    outcome = cli("transaction", "describe", name + "x")
    assert outcome.exit_code == 1
    assert f"did you mean '{name}'" in outcome.err
    producer.abort_transaction(PATIENCE_SECONDS)


def test_transaction_abort_by_id_shuts_the_producer_out(
    ok: Ok, producer: Producer, bootstrap_servers: str, topic: str, name: str
) -> None:
    producer.produce(topic, b"v", partition=0)
    producer.flush()
    assert ok("transaction", "abort", name) == f"aborted the transaction of {name}\n"
    assert listed(ok, name, "--state", "Ongoing") == []
    with pytest.raises(KafkaException):
        producer.commit_transaction(PATIENCE_SECONDS)
    assert committed_records(bootstrap_servers, topic, 0) == []


@pytest.mark.parametrize("options", [[], ["x", "--topic", "t"], ["--topic", "t"]])
def test_transaction_abort_needs_an_id_or_a_place(cli: Run, options: list[str]) -> None:
    outcome = cli("transaction", "abort", *options)
    assert outcome.exit_code == 2
    assert "transactional id, or --topic" in outcome.err


# Transactions that hang


@pytest.fixture
def unverified(bootstrap_servers: str) -> Iterator[None]:
    """The broker lets transactions into partitions that no coordinator knows of."""
    alter_verification(bootstrap_servers, "false")
    yield
    alter_verification(bootstrap_servers, "true")


def alter_verification(bootstrap_servers: str, value: str) -> None:
    name = "transaction.partition.verification.enable"
    change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[change])
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(PATIENCE_SECONDS)


@pytest.fixture
def hanging(ok: Ok, bootstrap_servers: str, unverified: None, topic: str, name: str) -> str:
    """A topic whose partition 1 has a transaction open, from offset 2 on, that nobody will end."""
    ok("produce", topic, "a", "b", "--partition", "1")
    with TransactionalProducer(bootstrap_servers, f"{name}-lost", protocol=1) as producer:
        assert producer.init() == NO_ERROR
        while producer.produce(topic, [b"lost"], partition=1).error_code != NO_ERROR:
            pass  # Apache Kafka takes the setting over a moment after it answers
    ok("produce", topic, "c", "--partition", "1")
    return topic


def test_transaction_list_finds_what_hangs(ok: Ok, hanging: str) -> None:
    options = ("--hanging", "--topic", hanging, "--older-than", "0")
    [found] = json.loads(ok("transaction", "list", "--json", *options))
    assert (found["topic"], found["partition"], found["start_offset"]) == (hanging, 1, 2)
    assert "START OFFSET" in ok("transaction", "list", *options)


def test_transaction_list_leaves_out_what_may_still_end(
    ok: Ok, producer: Producer, topic: str, hanging: str
) -> None:
    producer.produce(topic, b"v", partition=0)
    producer.flush()
    found = json.loads(
        ok("transaction", "list", "--json", "--hanging", "--topic", topic, "--older-than", "0")
    )
    assert [it["partition"] for it in found] == [1]
    assert json.loads(ok("transaction", "list", "--json", "--hanging", "--topic", topic)) == []
    producer.abort_transaction(PATIENCE_SECONDS)


def test_transaction_abort_ends_what_hangs(ok: Ok, bootstrap_servers: str, hanging: str) -> None:
    assert committed_records(bootstrap_servers, hanging, 1) == [b"a", b"b"]
    place = ("--topic", hanging, "--partition", "1", "--start-offset", "2")
    assert "aborted the transaction at offset 2" in ok("transaction", "abort", *place)
    assert committed_records(bootstrap_servers, hanging, 1) == [b"a", b"b", b"c"]
    options = ("--hanging", "--topic", hanging, "--older-than", "0")
    assert ok("transaction", "list", *options) == "no hanging transactions\n"


def test_transaction_abort_names_where_open_ones_begin(cli: Run, hanging: str) -> None:
    outcome = cli("transaction", "abort", "-t", hanging, "-p", "1", "--start-offset", "0")
    assert outcome.exit_code == 1
    assert "open ones begin at 2" in outcome.err
    elsewhere = cli("transaction", "abort", "-t", hanging, "-p", "0", "--start-offset", "0")
    assert "none is open there" in elsewhere.err
