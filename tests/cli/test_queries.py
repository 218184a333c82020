"""`millstream queries` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import Run

Ok = Callable[..., str]
SCHEMA = "category string, price double, text string, at timestamp"


@pytest.fixture
def searches(ok: Ok, name: str) -> str:
    ok("queries", "create", name, "--schema", SCHEMA)
    return name


def listed(ok: Ok, topic: str) -> dict[str, Any]:
    return dict(json.loads(ok("queries", "list", topic, "--json")))


def test_queries_create_makes_a_compacted_topic_with_broker_times(ok: Ok, searches: str) -> None:
    [description] = json.loads(ok("topic", "describe", searches, "--json"))
    assert len(description["partitions"]) == 1
    assert description["settings"]["cleanup.policy"] == "compact"
    assert description["settings"]["message.timestamp.type"] == "LogAppendTime"


def test_queries_create_refuses_columns_that_it_cannot_check(cli: Run, name: str) -> None:
    outcome = cli("queries", "create", name, "--schema", "price list")
    assert outcome.exit_code == 1
    assert "is no column" in outcome.err


def test_queries_are_added_listed_and_removed(ok: Ok, searches: str) -> None:
    assert ok("queries", "add", searches, "ada", "price < 300") == "added ada, version 1\n"
    ok("queries", "add", searches, "bob", "category = 'bike'", "--since", "2090-01-01T00:00Z")
    ok("queries", "add", searches, "ada", "price < 200")
    found = listed(ok, searches)
    assert [(it["id"], it["version"], it["where"]) for it in found["queries"]] == [
        ("ada", 3, "price < 200"),
        ("bob", 2, "category = 'bike'"),
    ]
    assert found["queries"][1]["since"] == "2090-01-01T00:00:00+00:00"
    assert "price < 200" in ok("queries", "list", searches)
    assert ok("queries", "remove", searches, "ada") == "removed ada\n"
    assert [it["id"] for it in listed(ok, searches)["queries"]] == ["bob"]


def test_queries_compare_decimals_and_fields_exactly(cli: Run, ok: Ok, name: str) -> None:
    schema = (
        "price decimal(20,2), at timestamp, seller struct<name: string, since: date, x: double>"
    )
    ok("queries", "create", name, "--schema", schema)
    ok("queries", "add", name, "ada", "price = 90071992547409.93 AND seller.since > '2026-01-01'")
    ok("queries", "add", name, "bob", "seller.x >= 0.5 AND at IS NULL")
    seller = '"seller": {"since": "2026-01-02", "x": 0.5}'
    found = json.loads(
        ok("queries", "test", name, f'{{"price": 90071992547409.93, {seller}}}', "--json")
    )
    assert [it["id"] for it in found] == ["ada", "bob"]
    found = json.loads(
        ok("queries", "test", name, f'{{"price": 90071992547409.94, {seller}}}', "--json")
    )
    assert [it["id"] for it in found] == ["bob"]
    for event, problem in (
        ('{"price": 1.001}', "does not fit the schema"),
        ('{"seller": {"nam": "x"}}', "seller has 'nam', which is no column: name, since, x"),
        ('{"seller": {"since": "x"}}', "since is 'x', which is no date"),
    ):
        outcome = cli("queries", "test", name, event)
        assert outcome.exit_code != 0
        assert problem in outcome.err


def test_queries_add_points_at_an_error_and_writes_nothing(cli: Run, ok: Ok, searches: str) -> None:
    outcome = cli("queries", "add", searches, "ada", "category = 'bike' AND pric < 300")
    assert outcome.exit_code == 1
    lines = outcome.err.splitlines()
    assert lines[0] == "millstream: no column 'pric'"
    assert lines[2].index("^") == lines[1].index("pric")
    assert "Did you mean price?" in lines[3]
    assert listed(ok, searches)["queries"] == []


def test_queries_add_warns_if_no_index_helps(cli: Run, searches: str) -> None:
    outcome = cli("queries", "add", searches, "ada", "price <> 3")
    assert outcome.exit_code == 0
    assert "evaluated for every event" in outcome.err


def test_queries_list_shows_refused_records_until_they_are_replaced(ok: Ok, searches: str) -> None:
    ok("produce", searches, '{"where": "price <"}', "--key", "ada")
    [refused] = listed(ok, searches)["refused"]
    assert (refused["id"], refused["version"]) == ("ada", 1)
    assert "a literal expected" in refused["reason"]
    assert "a literal expected" in ok("queries", "list", searches)
    ok("queries", "add", searches, "ada", "price < 3")
    assert listed(ok, searches)["refused"] == []


def test_queries_test_shows_what_matches_and_why(ok: Ok, searches: str) -> None:
    ok("queries", "add", searches, "ada", "price < 300 OR matches(text, 'tea')")
    ok("queries", "add", searches, "bob", "at > '2026-01-01'")
    event = '{"price": 250, "text": "TEA", "at": "2025-01-01T00:00:00Z"}'
    found = json.loads(ok("queries", "test", searches, event, "--json"))
    assert found == [{"id": "ada", "version": 1, "why": ["price < 300", "text: tea"]}]
    truths = json.loads(ok("queries", "test", searches, '{"text": "a"}', "--id", "ada", "--json"))
    assert [it["truth"] for it in truths] == ["unknown", "false"]
    shown = ok("queries", "test", searches, event, "--where", "price BETWEEN 200 AND 300")
    assert "true" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "{}", "_x", "price < 3"), "reserved"),
        (("remove", "{}", "nobody"), "no query 'nobody'"),
        (("test", "{}", "[]"), "must be a JSON object"),
        (("test", "{}", "{"), "no JSON"),
        (("test", "{}", '{"color": 1}'), "'color', which is no column"),
        (("test", "{}", '{"price": "x"}'), "does not fit"),
        (("test", "{}", '{"at": "x"}'), "which is no time"),
        (("test", "{}", "{}", "--id", "nobody"), "no query 'nobody'"),
        (("test", "{}", "{}", "--id", "a", "--where", "b"), "leave out one"),
    ],
)
def test_queries_name_what_is_wrong(
    cli: Run, searches: str, arguments: tuple[str, ...], message: str
) -> None:
    command = [searches if it == "{}" and at == 1 else it for at, it in enumerate(arguments)]
    outcome = cli("queries", *command)
    assert outcome.exit_code in (1, 2)
    assert message in outcome.err


def test_queries_need_a_schema_and_one_partition(cli: Run, ok: Ok, name: str) -> None:
    ok("topic", "create", name, "--partitions", "2")
    assert "several partitions" in cli("queries", "list", name).err
    ok("topic", "create", f"{name}-single", "--partitions", "1")
    assert "has no schema" in cli("queries", "list", f"{name}-single").err
