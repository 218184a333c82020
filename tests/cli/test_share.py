"""`millstream group` for share groups, against a real broker and confluent-kafka's consumer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, ShareConsumer

from tests.cli.conftest import Run
from tests.peers.patience import wait_until

Ok = Callable[..., str]


@pytest.fixture
def queue(ok: Ok, topic: str) -> str:
    """A share group that begins with the first of ten records in partition 0."""
    ok("produce", topic, *(f"v{n}" for n in range(10)), "--partition", "0")
    name = f"q-{topic}"
    ok("group", "config", name, "share.auto.offset.reset=earliest")
    return name


class Member:
    """A member of the queue that has taken records, and what it has taken."""

    def __init__(self, bootstrap_servers: str, topic: str, group: str) -> None:
        self.consumer = ShareConsumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "client.id": "till",
                "share.acknowledgement.mode": "explicit",
                "log_level": 0,
            }
        )
        self.consumer.subscribe([topic])
        self.records: list[Any] = []

    def take(self, count: int) -> None:
        while len(self.records) < count:
            self.records += self.consumer.poll(1.0)

    def acknowledge(self, offsets: range, kind: AcknowledgeType) -> None:
        for record in self.records:
            if record.offset() in offsets:
                self.consumer.acknowledge(record, kind)
        self.consumer.commit_sync()


@pytest.fixture
def member(bootstrap_servers: str, topic: str, queue: str) -> Iterator[Member]:
    member = Member(bootstrap_servers, topic, queue)
    yield member
    member.consumer.close()


def described(ok: Ok, group: str) -> dict[str, Any]:
    return dict(json.loads(ok("group", "describe", group, "--json")))


def partition(description: dict[str, Any], index: int) -> dict[str, Any]:
    [found] = [it for it in description["partitions"] if it["partition"] == index]
    return dict(found)


def test_group_list_shows_share_groups(ok: Ok, queue: str, member: Member) -> None:
    member.take(1)
    rows = json.loads(ok("group", "list", "--json"))
    assert {"group": queue, "type": "share", "state": "stable"} in rows


def test_group_describe_shows_what_is_in_flight(
    ok: Ok, topic: str, queue: str, member: Member, request: pytest.FixtureRequest
) -> None:
    member.take(10)
    member.acknowledge(range(4), AcknowledgeType.ACCEPT)
    member.acknowledge(range(5, 7), AcknowledgeType.RELEASE)
    description = described(ok, queue)
    assert (description["type"], description["state"]) == ("share", "stable")
    assert [it["client"] for it in description["members"]] == ["till"]
    found = partition(description, 0)
    assert (found["start"], found["end"], found["backlog"]) == (4, 10, 6)
    assert found["released"] == 2
    if "apache-kafka" in request.node.name:
        assert found["held"] is None
        assert found["deliveries"] == {"1": 2}
    else:
        assert found["held"] == 4
        assert found["deliveries"] == {"1": 6}
    table = ok("group", "describe", queue)
    assert "BACKLOG" in table
    assert topic in table


def test_group_describe_shows_delayed_records(
    ok: Ok, queue: str, member: Member, request: pytest.FixtureRequest
) -> None:
    if "apache-kafka" in request.node.name:
        pytest.skip("delayed retry is ours")
    ok("group", "config", queue, "share.retry.backoff.ms=60000")
    member.take(10)
    member.acknowledge(range(3), AcknowledgeType.RELEASE)
    found = partition(described(ok, queue), 0)
    assert (found["delayed"], found["released"], found["held"]) == (3, 0, 7)


def test_group_reset_moves_a_share_group(
    ok: Ok, cli: Run, topic: str, queue: str, member: Member
) -> None:
    member.take(10)
    member.acknowledge(range(10), AcknowledgeType.ACCEPT)
    options = (queue, "--topic", f"{topic}:0", "--to-offset", "3")
    refused = cli("group", "reset", *options, "--execute")
    assert refused.exit_code == 1
    assert "stop its consumers" in refused.err
    member.consumer.close()
    wait_until(lambda: described(ok, queue)["state"] == "empty")
    assert "dry run" in cli("group", "reset", *options).err
    assert partition(described(ok, queue), 0)["backlog"] == 0
    ok("group", "reset", *options, "--execute")
    found = partition(described(ok, queue), 0)
    assert (found["start"], found["backlog"]) == (3, 7)


def test_group_delete_removes_a_share_group(ok: Ok, queue: str, member: Member) -> None:
    member.take(1)
    member.consumer.close()
    wait_until(lambda: described(ok, queue)["state"] == "empty")
    assert ok("group", "delete", queue) == f"deleted {queue}\n"
    assert queue not in ok("group", "list")
