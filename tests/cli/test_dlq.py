"""`millstream dlq` against a real broker, on letters as share groups write them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.cli.conftest import Run

Ok = Callable[..., str]


def letter(topic: str, offset: int, value: str | None, **errors: str) -> str:
    """A dead letter of a record of partition 1, as a line for `produce --envelope`."""
    named = {"topic": topic, "partition": "1", "offset": str(offset), "group": "billing"}
    named |= {"delivery.count": "5", "reason": "limit", "message": "too often"} | errors
    headers = [[f"__dlq.errors.{name}", text] for name, text in named.items()]
    copied: list[Any] = [] if value is None else [["trace", "t"]]
    key = None if value is None else f"k{offset}"
    return json.dumps({"key": key, "value": value, "headers": copied + headers})


@pytest.fixture
def dlq(ok: Ok, topic: str) -> str:
    """A dead-letter topic with four letters, of three records and for two groups."""
    name = f"dlq.{topic}"
    ok("topic", "create", name, "--partitions", "2")
    ok("produce", topic, "r0", "r1", "r2", "--partition", "1")
    lines = [
        letter(topic, 0, "r0"),
        letter(topic, 1, "r1", reason="rejected", group="audit"),
        letter(topic, 0, "r0"),
        letter(topic, 2, None),
    ]
    ok("produce", name, "--envelope", "--partition", "1", stdin="\n".join(lines))
    return name


def records(ok: Ok, topic: str) -> list[dict[str, Any]]:
    lines = ok("consume", topic, "--from-beginning", "--no-follow", "--json").splitlines()
    return [json.loads(line) for line in lines]


def replayed(ok: Ok, topic: str) -> list[dict[str, Any]]:
    """What came after the three records that were there first."""
    return records(ok, topic)[3:]


def replay(ok: Ok, dlq: str, *options: str) -> dict[str, Any]:
    return dict(json.loads(ok("dlq", "replay", dlq, "--execute", "--json", *options)))


def test_dlq_list_counts_by_group_source_and_reason(ok: Ok, dlq: str, topic: str) -> None:
    rows = [row for row in json.loads(ok("dlq", "list", "--json")) if row["topic"] == dlq]
    found = [(it["group"], it["source"], it["reason"], it["letters"]) for it in rows]
    assert found == [("audit", topic, "rejected", 1), ("billing", topic, "limit", 3)]
    assert rows[1]["oldest"] <= rows[1]["newest"]
    assert "OLDEST" in ok("dlq", "list")


def test_dlq_list_shows_empty_topics(ok: Ok, name: str) -> None:
    ok("topic", "create", f"dlq.{name}")
    rows = [it for it in json.loads(ok("dlq", "list", "--json")) if it["topic"] == f"dlq.{name}"]
    assert [row["letters"] for row in rows] == [0]
    assert f"dlq.{name}" in ok("dlq", "list")


def test_dlq_list_knows_topics_by_their_setting(
    ok: Ok, name: str, request: pytest.FixtureRequest
) -> None:
    if "apache-kafka" in request.node.name:
        pytest.skip("the setting is of Kafka 4.4")
    ok("topic", "create", name, "-c", "errors.deadletterqueue.group.enable=true")
    assert name in ok("dlq", "list")


def test_dlq_show_tells_origin_reason_and_content(ok: Ok, dlq: str, topic: str) -> None:
    first, *_, last = json.loads(ok("dlq", "show", dlq, "--json"))
    origin = {"topic": topic, "partition": 1, "offset": 0, "group": "billing"}
    assert first["origin"] == origin
    assert (first["reason"], first["delivery_count"], first["message"]) == ("limit", 5, "too often")
    assert (first["key"], first["value"], first["has_copy"]) == ("k0", "r0", True)
    assert last["has_copy"] is False
    shown = ok("dlq", "show", dlq)
    assert f"{topic}[1]@0" in shown
    assert "k0: r0" in shown
    assert "without a copy" in shown


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        (["--group", "audit"], [1]),
        (["--reason", "limit"], [0, 0, 2]),
        (["--reason", "limit", "--unique"], [0, 2]),
        (["--since", "1h"], [0, 1, 0, 2]),
        (["--until", "1h"], []),
        (["--limit", "2"], [0, 1]),
    ],
)
def test_dlq_show_filters(ok: Ok, dlq: str, options: list[str], offsets: list[int]) -> None:
    shown = json.loads(ok("dlq", "show", dlq, "--json", *options))
    assert [it["origin"]["offset"] for it in shown] == offsets


def test_dlq_show_says_that_there_is_more(cli: Run, dlq: str) -> None:
    assert "more than 2" in cli("dlq", "show", dlq, "--limit", "2").err
    assert cli("dlq", "show", dlq, "--limit", "4").err == ""


def test_dlq_show_of_an_unknown_topic_suggests(cli: Run, dlq: str) -> None:
    outcome = cli("dlq", "show", dlq + "x")
    assert outcome.exit_code == 1
    assert f"did you mean '{dlq}'" in outcome.err


def test_dlq_replay_sends_nothing_by_default(cli: Run, ok: Ok, dlq: str, topic: str) -> None:
    outcome = cli("dlq", "replay", dlq)
    assert outcome.out == "would replay 3 letters\n"
    assert "dry run" in outcome.err
    assert replayed(ok, topic) == []


def test_dlq_replay_sends_each_record_back_once(ok: Ok, dlq: str, topic: str) -> None:
    assert replay(ok, dlq)["sent"] == 3
    assert replay(ok, dlq) == {
        "topic": dlq,
        "executed": True,
        "sent": 0,
        "replayed_before": 4,
        "duplicates": 0,
        "originals_gone": 0,
    }
    found = [(it["partition"], it["key"], it["value"]) for it in replayed(ok, topic)]
    assert found == [(1, "k0", "r0"), (1, "k1", "r1"), (1, None, "r2")]


def test_dlq_replay_keeps_the_history(ok: Ok, dlq: str, topic: str) -> None:
    replay(ok, dlq)
    for record in replayed(ok, topic):
        headers = dict(record["headers"])
        assert headers["__dlq.errors.topic"] == topic
        assert headers["__dlq.replay.count"] == "1"
    ok("produce", dlq, "--envelope", "--partition", "0", stdin=json.dumps(replayed(ok, topic)[0]))
    replay(ok, dlq)
    assert dict(replayed(ok, topic)[-1]["headers"])["__dlq.replay.count"] == "2"


def test_dlq_replay_of_some_leaves_the_others_for_later(ok: Ok, dlq: str, topic: str) -> None:
    assert replay(ok, dlq, "--reason", "rejected")["sent"] == 1
    assert replay(ok, dlq)["sent"] == 2
    assert [it["value"] for it in replayed(ok, topic)] == ["r1", "r0", "r2"]


def test_dlq_replay_goes_to_another_topic(ok: Ok, dlq: str, topic: str) -> None:
    ok("topic", "create", f"{topic}-retry")
    assert replay(ok, dlq, "--to", f"{topic}-retry")["sent"] == 3
    assert len(records(ok, f"{topic}-retry")) == 3
    assert replayed(ok, topic) == []


def test_dlq_replay_needs_a_target_for_a_record_of_unknown_origin(
    cli: Run, ok: Ok, dlq: str, topic: str
) -> None:
    ok("produce", dlq, "whoever", "--partition", "0")
    outcome = cli("dlq", "replay", dlq, "--execute")
    assert outcome.exit_code == 1
    assert "--to TOPIC" in outcome.err
    assert replay(ok, dlq, "--to", topic)["sent"] == 4
    assert len(replayed(ok, topic)) == 4, "what was sent before the failure was taken back"


def test_dlq_replay_counts_records_that_are_gone(
    cli: Run, ok: Ok, dlq: str, topic: str, bootstrap_servers: str
) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for future in admin.delete_records([TopicPartition(topic, 1, 3)]).values():
        future.result()
    outcome = cli("dlq", "replay", dlq, "--execute")
    assert outcome.out == "replayed 2 letters\n"
    assert "1 have no copy of their record" in outcome.err


def test_dlq_replay_sends_no_other_record_that_stands_where_the_failed_one_was(
    cli: Run, ok: Ok, topic: str
) -> None:
    now_ms = int(time.time() * 1000)
    record = {"value": "new", "timestamp_ms": now_ms}
    ok("produce", topic, "--envelope", "--partition", "1", stdin=json.dumps(record))
    ok("topic", "create", f"dlq.{topic}")
    lines = [
        letter(topic, 0, None, group="of a deleted topic", timestamp=str(now_ms - 60_000)),
        letter(topic, 0, None, group="of this one", timestamp=str(now_ms)),
    ]
    ok("produce", f"dlq.{topic}", "--envelope", stdin="\n".join(lines))
    outcome = cli("dlq", "replay", f"dlq.{topic}", "--execute")
    assert outcome.out == "replayed 1 letter\n"
    assert "1 have no copy of their record" in outcome.err
    (sent,) = records(ok, topic)[1:]
    assert dict(sent["headers"])["__dlq.errors.group"] == "of this one"


def test_dlq_purge_deletes_all_letters(ok: Ok, dlq: str) -> None:
    assert ok("dlq", "purge", dlq) == f"deleted 4 dead letters of {dlq}\n"
    assert json.loads(ok("dlq", "show", dlq, "--json")) == []
    assert ok("dlq", "purge", dlq) == f"deleted 0 dead letters of {dlq}\n"


def test_dlq_purge_spares_what_was_not_replayed(ok: Ok, dlq: str) -> None:
    assert ok("dlq", "purge", dlq, "--replayed") == f"deleted 0 dead letters of {dlq}\n"
    replay(ok, dlq, "--reason", "limit")
    ok("dlq", "purge", dlq, "--replayed")
    left = json.loads(ok("dlq", "show", dlq, "--json"))
    assert [it["offset"] for it in left] == [1, 2, 3]
