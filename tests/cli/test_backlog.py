"""The backlog policy in `millstream topic describe`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from tests.cli.conftest import Run
from tests.peers.patience import PATIENCE_SECONDS

Ok = Callable[..., str]
PREFIX = "millstream.backlog."
REJECTS_UNLESS_IDLE = "rejects producers unless idle"  # the group has no members


def described(ok: Ok, topic: str) -> Any:
    [description] = json.loads(ok("topic", "describe", topic, "--json"))
    return description["backlog"]


def settings(**values: object) -> list[str]:
    return [
        part for name, value in values.items() for part in ("--config", f"{PREFIX}{name}={value}")
    ]


def fill(servers: str, topic: str, group: str, committed: int) -> None:
    """Ten records of about 1 KB, of which the group has read some."""
    producer = Producer({"bootstrap.servers": servers})
    for _ in range(10):
        producer.produce(topic, b"x" * 1000, partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, committed)], asynchronous=False)
    consumer.close()


def test_topic_that_retains_has_no_backlog(ok: Ok, topic: str) -> None:
    assert described(ok, topic) is None


def test_describe_shows_policy_state_and_slowest_group(
    ok: Ok, name: str, bootstrap_servers: str
) -> None:
    ok("topic", "create", name, *settings(policy="reject", bytes=5000, groups=f"{name}-*"))
    fill(bootstrap_servers, name, f"{name}-slow", 2)
    backlog = described(ok, name)
    assert (backlog["policy"], backlog["bytes_max"], backlog["ms_max"]) == ("reject", 5000, None)
    assert backlog["groups_found"] == [f"{name}-slow"]
    [row] = [it for it in backlog["partitions"] if it["partition"] == 0]
    assert (row["group"], row["records"], row["state"]) == (f"{name}-slow", 8, REJECTS_UNLESS_IDLE)
    assert 8000 < row["bytes"] < 9000
    assert 0 <= row["age_ms"] < PATIENCE_SECONDS * 1000
    shown = ok("topic", "describe", name)
    assert "backlog policy" in shown
    assert "reject, from 5000 bytes on" in shown
    assert "rejects producers" in shown


def test_describe_shows_what_is_within_its_bound(ok: Ok, name: str, bootstrap_servers: str) -> None:
    ok("topic", "create", name, *settings(policy="drop", ms=3_600_000))
    fill(bootstrap_servers, name, f"{name}-slow", 9)
    [row] = [it for it in described(ok, name)["partitions"] if it["partition"] == 0]
    assert (row["records"], row["state"]) == (1, "within")
    assert "1h" in ok("topic", "describe", name)


def test_settings_that_do_not_go_together_are_refused_in_one_line(cli: Run, name: str) -> None:
    outcome = cli("topic", "create", name, *settings(policy="hold", bytes=5000))
    assert outcome.exit_code == 1
    assert "millstream.backlog.policy=hold needs millstream.backlog.groups" in outcome.err
    assert outcome.err.count("\n") == 1
