"""Records of pipelines and commands: what is written is read, and anything else is refused."""

from __future__ import annotations

import json

import pytest

from millstream.admin.pipeline_records import (
    VALUE_BYTES_MAX,
    About,
    Command,
    DiffShown,
    Node,
    OperatorStatus,
    OutputDiff,
    OutputStatus,
    Published,
    SourceStatus,
    decode,
    encode,
    shortened,
)

ABOUT = About(
    "sales",
    "2",
    "sales@2",
    "run-1",
    nodes=(
        Node(0, "source", "topic orders", (), (("format", "json"),), "orders"),
        Node(1, "state", "aggregate by product", (0,), (), "", (0,), True),
    ),
    does=("stop", "restart"),
    process=17,
)
STATUS = Published(
    "sales@2",
    "run-1",
    "working",
    late={"window": 3},
    lag=None,
    watermark_ms=1_700_000_000_000,
    sources={"orders": SourceStatus(10, 2.5, 3, 1)},
    operators=(OperatorStatus("stateStoreSave", 4, 400, 2),),
    outputs={"sales": OutputStatus(5, 1.0, 2, 1)},
)
DIFF = DiffShown(
    "sales",
    ("1", "2"),
    outputs=(OutputDiff("table sales", False, (3, 3), differing=1, by_column={"orders": 1}),),
)
COMMAND = Command("c-1", "sales@2", "run-1", "stop", "ada")


@pytest.mark.parametrize("record", [ABOUT, STATUS, DIFF, COMMAND])
def test_what_is_written_is_read(record: object) -> None:
    assert decode(type(record), encode(record)) == record


def test_fields_of_a_newer_millstream_are_ignored_and_missing_ones_have_their_default() -> None:
    later = json.dumps({"identity": "a", "run": "r", "state": "waiting", "mood": "good"})
    assert decode(Published, later.encode()) == Published("a", "r", "waiting")


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"nothing",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"identity": 7, "run": "r", "state": "waiting"}',
        b'{"identity": "a", "run": "r", "state": "waiting", "rows": "many"}',
        b'{"identity": "a", "run": "r", "state": "waiting", "rows": true}',
        b'{"identity": "a", "run": "r", "state": "waiting", "late": [1]}',
        b'{"identity": "a", "run": "r", "state": "waiting", "sources": {"t": 1}}',
        b'{"identity": "a", "run": "r", "state": "waiting", "operators": {"t": 1}}',
        b"[" * 100_000,
        b'"' + b"x" * VALUE_BYTES_MAX + b'"',
    ],
)
def test_anything_else_is_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        decode(Published, value)


@pytest.mark.parametrize(
    "changes", [{"action": "delete"}, {"nodes": 1}, {"versions": [1]}, {"id": None}]
)
def test_command_that_is_none_is_refused(changes: dict[str, object]) -> None:
    value = json.loads(encode(COMMAND)) | changes
    if "nodes" in changes:
        assert decode(Command, json.dumps(value).encode()) == COMMAND  # a field of something else
        return
    with pytest.raises(ValueError):
        decode(Command, json.dumps(value).encode())


def test_pairs_must_be_pairs() -> None:
    value = json.loads(encode(ABOUT))
    value["nodes"][0]["details"] = [["format"]]
    with pytest.raises(ValueError, match="is no"):
        decode(About, json.dumps(value).encode())


def test_diff_with_an_error_is_not_equal() -> None:
    assert DiffShown("sales", ("1", "2")).is_equal
    assert not DiffShown("sales", ("1", "2"), error="gone").is_equal
    assert not DIFF.is_equal


def test_long_text_is_cut() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "ab…"


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("rows_per_second", "NaN"),
        ("rows_per_second", "Infinity"),
        ("rows_per_second", "1e999"),
        ("rows_per_second", "1" + "0" * 400),
        ("rows", "1" + "0" * 400),
        ("watermark_ms", str(2**63)),
        ("error", '"\\ud800"'),
    ],
)
def test_numbers_and_text_that_no_page_can_show_are_refused(name: str, number: str) -> None:
    value = f'{{"identity": "a", "run": "r", "state": "waiting", "{name}": {number}}}'
    with pytest.raises(ValueError):
        decode(Published, value.encode())
