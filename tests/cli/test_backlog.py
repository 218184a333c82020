"""The backlog policy in `millstream topic describe`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.cli.backlog import policy_in, sizes_in, unread_bytes, used_of
from millstream.config.backlog import BacklogPolicy
from millstream.errors import ErrorCode
from tests.broker.serving import entity, schema
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


def test_state_is_unknown_where_the_size_is() -> None:
    policy = BacklogPolicy("hold", 1000, 500, ("g",), 1)
    assert unread_bytes(5, 10, None) is None
    assert unread_bytes(0, 10, None) == 0
    unknown = used_of(policy, None, 499, has_members=True)
    assert (unknown["state"], unknown["used"], unknown["bytes"]) == ("unknown", None, None)
    assert used_of(policy, None, 500, has_members=True)["state"] == "holds producers"
    assert used_of(policy, 999, 499, has_members=True)["state"] == "within"
    assert used_of(policy, 1000, 0, has_members=False)["state"] == "holds producers unless idle"


def test_copy_on_its_way_to_another_directory_is_not_the_log() -> None:
    def directory(size: int, *, is_future: bool) -> dict[str, Any]:
        copy = {
            "partition_index": 0,
            "partition_size": size,
            "offset_lag": 0,
            "is_future_key": is_future,
        }
        topic = {"name": "t", "partitions": [copy]}
        return {
            "error_code": ErrorCode.NONE,
            "log_dir": "/",
            "topics": [topic],
            "total_bytes": -1,
            "usable_bytes": -1,
        }

    results = [directory(100, is_future=False), directory(7, is_future=True)]
    cls = schema("describe_log_dirs", 4, "response")
    fields = {"throttle_time": 0, "error_code": ErrorCode.NONE, "results": results}
    assert sizes_in(entity(cls, fields)) == {0: 100}


def test_topics_of_other_brokers_have_no_policy() -> None:
    assert policy_in({"retention.ms": "1"}) is None
    assert policy_in({PREFIX + "policy": "retain"}) is None
