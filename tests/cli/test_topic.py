"""`millstream topic` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.cli.conftest import Run

Ok = Callable[..., str]


def described(ok: Ok, topic: str, *options: str) -> dict[str, Any]:
    [description] = json.loads(ok("topic", "describe", topic, "--json", *options))
    return dict(description)


def test_topic_create_makes_partitions_and_settings(ok: Ok, name: str) -> None:
    out = ok("topic", "create", name, "--partitions", "3", "--config", "retention.ms=60000")
    assert out == f"created {name}\n"
    description = described(ok, name)
    assert [p["partition"] for p in description["partitions"]] == [0, 1, 2]
    assert description["settings"]["retention.ms"] == "60000"


def test_topic_create_refuses_a_second_time_in_one_line(cli: Run, topic: str) -> None:
    outcome = cli("topic", "create", topic)
    assert outcome.exit_code == 1
    assert "already exists" in outcome.err
    assert outcome.err.count("\n") == 1


def test_topic_create_if_not_exists_leaves_it_alone(ok: Ok, topic: str) -> None:
    assert ok("topic", "create", topic, "--if-not-exists") == ""


def test_topic_create_dry_run_creates_nothing(ok: Ok, name: str) -> None:
    assert ok("topic", "create", name, "--dry-run") == f"would create {name}\n"
    assert name not in ok("topic", "list", "--json")


def test_topic_create_names_an_unknown_setting(cli: Run, name: str) -> None:
    outcome = cli("topic", "create", name, "--config", "retention.hours=3")
    assert outcome.exit_code == 1
    assert "retention.hours" in outcome.err


def test_topic_create_refuses_a_setting_without_value(cli: Run, name: str) -> None:
    outcome = cli("topic", "create", name, "--config", "retention.ms")
    assert outcome.exit_code == 2
    assert "name=value" in outcome.err


def test_topic_list_shows_user_topics_and_hides_internal_ones(ok: Ok, topic: str) -> None:
    ok("consume", topic, "--group", f"g-{topic}", "--no-follow")
    visible = [row["topic"] for row in json.loads(ok("topic", "list", "--json"))]
    every = [row["topic"] for row in json.loads(ok("topic", "list", "--internal", "--json"))]
    assert topic in visible
    assert "__consumer_offsets" not in visible
    assert "__consumer_offsets" in every
    assert f"{topic} " in ok("topic", "list")


def test_topic_describe_counts_records(ok: Ok, topic: str) -> None:
    ok("produce", topic, "a", "b", "--partition", "1")
    partition = described(ok, topic)["partitions"][1]
    assert (partition["start"], partition["end"], partition["records"]) == (0, 2, 2)
    table = ok("topic", "describe", topic)
    assert topic in table
    assert "PARTITION" in table


def test_topic_describe_shows_defaults_when_asked(ok: Ok, topic: str) -> None:
    assert "segment.bytes" not in described(ok, topic)["settings"]
    assert "segment.bytes" in described(ok, topic, "--all-settings")["settings"]


def test_topic_describe_suggests_a_near_name(cli: Run, topic: str) -> None:
    outcome = cli("topic", "describe", topic + "x")
    assert outcome.exit_code == 1
    assert f"did you mean '{topic}" in outcome.err


def test_topic_alter_sets_and_unsets_settings(ok: Ok, topic: str) -> None:
    ok("topic", "alter", topic, "--config", "max.message.bytes=2000")
    assert described(ok, topic)["settings"]["max.message.bytes"] == "2000"
    ok("topic", "alter", topic, "--delete-config", "max.message.bytes")
    assert "max.message.bytes" not in described(ok, topic)["settings"]


def test_topic_alter_adds_partitions_and_refuses_to_take_them(ok: Ok, cli: Run, topic: str) -> None:
    ok("topic", "alter", topic, "--partitions", "5")
    assert len(described(ok, topic)["partitions"]) == 5
    outcome = cli("topic", "alter", topic, "--partitions", "2")
    assert outcome.exit_code == 1
    assert topic in outcome.err


def test_topic_alter_without_a_change_is_a_usage_error(cli: Run, topic: str) -> None:
    assert cli("topic", "alter", topic).exit_code == 2


def test_topic_delete_removes_it(ok: Ok, cli: Run, topic: str) -> None:
    assert ok("topic", "delete", topic, "--yes") == f"deleted {topic}\n"
    assert cli("topic", "describe", topic).exit_code == 1
    assert cli("topic", "delete", topic).exit_code == 1
    assert ok("topic", "delete", topic, "--if-exists") == ""
