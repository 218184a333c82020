"""`millstream group` against a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cli.conftest import Run

Ok = Callable[..., str]


@pytest.fixture
def group(ok: Ok, topic: str) -> str:
    """A group that has read 4 of the 10 records in partition 0 and none of the others."""
    ok("produce", topic, *(f"v{n}" for n in range(10)), "--partition", "0")
    name = f"g-{topic}"
    ok("consume", topic, "--group", name, "--from-beginning", "--count", "4")
    return name


@pytest.fixture(params=["classic", "consumer"])
def member(
    request: pytest.FixtureRequest, bootstrap_servers: str, topic: str, group: str
) -> Iterator[Consumer]:
    """A consumer that has joined the group, by either protocol, and owns its partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "client.id": "till",
            "group.protocol": request.param,
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    while not consumer.assignment():
        consumer.poll(0.1)
    yield consumer
    consumer.close()


def described(ok: Ok, group: str) -> dict[str, Any]:
    return dict(json.loads(ok("group", "describe", group, "--json")))


def partition(description: dict[str, Any], index: int) -> dict[str, Any]:
    [found] = [p for p in description["partitions"] if p["partition"] == index]
    return dict(found)


def test_group_list_shows_state_and_type(ok: Ok, group: str) -> None:
    rows = json.loads(ok("group", "list", "--json"))
    assert {"group": group, "type": "classic", "state": "empty"} in rows
    assert group in ok("group", "list")


def test_group_describe_counts_the_lag(ok: Ok, group: str, topic: str) -> None:
    description = described(ok, group)
    assert description["state"] == "empty"
    assert description["lag"] == 6
    found = partition(description, 0)
    assert (found["committed"], found["end"], found["lag"], found["lost"]) == (4, 10, 6, 0)
    table = ok("group", "describe", group)
    assert "COMMITTED" in table
    assert topic in table


def test_group_describe_names_members(ok: Ok, group: str, topic: str, member: Consumer) -> None:
    description = described(ok, group)
    assert description["state"] == "stable"
    [shown] = description["members"]
    assert shown["client"] == "till"
    assert f"{topic}[0]" in shown["partitions"]
    assert partition(description, 0)["member"].startswith("till @ ")


def test_group_describe_says_what_retention_took(
    ok: Ok, cli: Run, group: str, topic: str, bootstrap_servers: str
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 0, 7)]).values():
        future.result()
    found = partition(described(ok, group), 0)
    assert (found["lost"], found["lag"]) == (3, 3)
    assert f"{topic}[0]: retention deleted 3 unread records" in cli("group", "describe", group).err


def test_group_describe_warns_before_retention_takes_records(
    ok: Ok, cli: Run, group: str, topic: str
) -> None:
    assert cli("group", "describe", group).err == ""
    assert partition(described(ok, group), 0)["expires_in_ms"] > 0
    age_ms = 10**9
    line = json.dumps({"value": "old", "timestamp_ms": round(time.time() * 1000) - age_ms})
    ok("topic", "create", f"{topic}-old", "--config", f"retention.ms={age_ms * 10 // 9}")
    ok("produce", f"{topic}-old", "--envelope", stdin=line)
    ok("group", "reset", group, "--topic", f"{topic}-old", "--to-earliest", "--execute")
    assert "retention reaches unread records in" in cli("group", "describe", group).err


def test_group_describe_of_an_unknown_group_suggests(cli: Run, group: str) -> None:
    outcome = cli("group", "describe", group + "x")
    assert outcome.exit_code == 1
    assert f"did you mean '{group}'" in outcome.err


def committed(ok: Ok, group: str) -> int:
    return int(partition(described(ok, group), 0)["committed"])


def test_group_reset_shows_but_does_nothing_by_default(
    ok: Ok, cli: Run, group: str, topic: str
) -> None:
    outcome = cli("group", "reset", group, "--topic", topic, "--to-earliest")
    assert "dry run" in outcome.err
    assert committed(ok, group) == 4


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (["--to-earliest"], 0),
        (["--to-latest"], 10),
        (["--to-current"], 4),
        (["--to-offset", "6"], 6),
        (["--to-offset", "99"], 10),
        (["--to-datetime", "2001-01-01"], 0),
        (["--to-datetime", "now"], 10),
        (["--by-duration", "1h"], 0),
        (["--by-duration", "PT1H"], 0),
        (["--shift-by", "2"], 6),
        (["--shift-by", "-1"], 3),
    ],
)
def test_group_reset_moves_to_the_target(
    ok: Ok, group: str, topic: str, target: list[str], expected: int
) -> None:
    out = ok("group", "reset", group, "--topic", f"{topic}:0", *target, "--execute", "--json")
    [move] = json.loads(out)["moves"]
    assert (move["committed"], move["target"]) == (4, expected)
    assert committed(ok, group) == expected


def test_group_reset_of_all_topics_takes_what_is_committed(ok: Ok, group: str) -> None:
    ok("group", "reset", group, "--all-topics", "--to-latest", "--execute")
    assert described(ok, group)["lag"] == 0


def test_group_reset_makes_a_group_that_is_new(ok: Ok, topic: str, name: str) -> None:
    """A copy of a consumer can be placed before it is started."""
    ok("produce", topic, "a", "b", "--partition", "0")
    ok("group", "reset", f"{name}-copy", "--topic", topic, "--to-earliest", "--execute")
    assert described(ok, f"{name}-copy")["lag"] == 2


def test_group_reset_refuses_a_group_with_members(
    cli: Run, group: str, topic: str, member: Consumer
) -> None:
    outcome = cli("group", "reset", group, "--topic", topic, "--to-earliest", "--execute")
    assert outcome.exit_code == 1
    assert "stop its consumers" in outcome.err


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--to-earliest"],
        ["--all-topics"],
        ["--all-topics", "--to-earliest", "--to-latest"],
        ["--topic", "t:x", "--to-earliest"],
    ],
)
def test_group_reset_names_missing_and_contradicting_options(
    cli: Run, topic: str, options: list[str]
) -> None:
    outcome = cli("group", "reset", "g", *(o.replace("t:", f"{topic}:") for o in options))
    assert outcome.exit_code == 2
    assert outcome.err.count("\n") == 1


def test_group_delete_removes_it(ok: Ok, cli: Run, group: str) -> None:
    assert ok("group", "delete", group) == f"deleted {group}\n"
    assert group not in ok("group", "list", "--json")
    assert cli("group", "delete", group).exit_code == 1


def test_group_delete_refuses_a_group_with_members(cli: Run, group: str, member: Consumer) -> None:
    outcome = cli("group", "delete", group)
    assert outcome.exit_code == 1
    assert group in outcome.err


def test_group_config_sets_shows_and_deletes(ok: Ok, cli: Run, name: str) -> None:
    assert "has no settings" in cli("group", "config", name).err
    out = ok("group", "config", name, "share.auto.offset.reset=earliest", "--json")
    assert json.loads(out) == {"share.auto.offset.reset": "earliest"}
    assert "share.isolation.level" in ok("group", "config", name, "--all")
    assert "share.isolation.level" not in ok("group", "config", name)
    out = ok("group", "config", name, "--delete", "share.auto.offset.reset", "--json")
    assert json.loads(out) == {}


def test_group_config_says_what_is_wrong_with_a_value(cli: Run, name: str) -> None:
    outcome = cli("group", "config", name, "share.auto.offset.reset=middle")
    assert outcome.exit_code == 1
    assert "'earliest', 'latest' or" in outcome.err
    assert cli("group", "config", name, "share.auto.offset.reset").exit_code == 2
