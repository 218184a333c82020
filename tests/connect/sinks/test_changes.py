"""Records of all forms as changes of rows."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from millstream.connect.sinks.changes import (
    Change,
    Format,
    check_format,
    decode_changes,
    document_id,
    fill_unchanged,
    in_pieces,
)
from millstream.errors import ConfigError


def encoded(value: Any) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def decode(*records: tuple[Any, Any], format: Format = "debezium", **given: Any) -> Any:
    return decode_changes(
        [(encoded(key), encoded(value)) for key, value in records], ("id",), format, **given
    )


def test_envelopes_are_read_with_and_without_their_schema() -> None:
    row = {"id": 1, "name": "a"}
    found = decode(
        (None, {"op": "c", "before": None, "after": row}),
        (None, {"schema": {}, "payload": {"op": "u", "after": row}}),
        ({"schema": {}, "payload": {"id": 7}}, None),
        ({"id": 2}, {"op": "d", "before": None}),
        (None, {"op": "d", "before": {"id": 3, "name": None}}),
        (None, {"op": "m", "message": {"prefix": "p"}}),
        ({"id": 4}, {"schema": {}, "payload": None}),
    )
    assert found.failures == []
    assert found.changes == [
        Change(0, (1,), row),
        Change(1, (1,), row),
        Change(2, (7,), None),
        Change(3, (2,), None),
        Change(4, (3,), None),
        Change(6, (4,), None),
    ]


def test_truncation_forgets_the_changes_before_it() -> None:
    records = [(None, {"op": "c", "after": {"id": 1}}), (None, {"op": "t"}), ({"id": 2}, None)]
    found = decode(*records)
    assert (found.clear, found.changes) == (True, [Change(2, (2,), None)])
    refused = decode(*records, may_truncate=False)
    assert not refused.clear
    assert "several partitions" in refused.failures[0].message


def test_flat_rows_are_deleted_by_their_mark() -> None:
    found = decode(
        (b"5", {"name": "a", "__lsn": 3, "__deleted": "false"}),
        (None, {"id": 6, "__deleted": "true"}),
        (b"plain", {"name": "b"}),
        (b"7", None),
        format="json",
    )
    assert found.changes == [
        Change(0, (5,), {"id": 5, "name": "a"}),
        Change(1, (6,), None),
        Change(2, ("plain",), {"id": "plain", "name": "b"}),
        Change(3, (7,), None),
    ]


@pytest.mark.parametrize(
    ("key", "value", "format", "reason", "message"),
    [
        (None, b"{", "json", "malformed", "the value is not JSON"),
        (None, b"", "json", "malformed", "the value is not JSON"),
        (None, b'{"id": 1} x', "json", "malformed", "Extra data"),
        (None, b'{"id": "\xff"}', "json", "malformed", "can't decode"),
        (None, [1], "json", "malformed", "not a JSON object"),
        (None, {"a": 1}, "debezium", "malformed", "not a Debezium envelope"),
        (None, {"op": "x"}, "debezium", "malformed", "unknown operation"),
        (None, {"op": "u", "after": None}, "debezium", "malformed", "has no row"),
        (None, {"name": "a"}, "json", "missing field", "neither value nor key"),
        ({"other": 1}, {"name": "a"}, "json", "missing field", "has 'id'"),
        ([1], {"name": "a"}, "json", "malformed", "not an object with"),
        (b"\xff", None, "json", "malformed", "neither JSON nor text"),
        (None, None, "json", "missing field", "neither value nor key"),
    ],
)
def test_bad_record_is_reported_with_its_reason(
    key: Any, value: Any, format: Format, reason: str, message: str
) -> None:
    found = decode((key, value), (b"1", None), format=format)
    [failure] = found.failures
    assert (failure.record, failure.reason) == (0, reason)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(failure.message)
    assert found.changes == [Change(1, (1,), None)]


PLACEHOLDER = "__debezium_unavailable_value"


def partial(id: int, **values: Any) -> tuple[Any, Any]:
    return None, {"op": "u", "after": {"id": id, **values}}


def test_unchanged_values_are_those_of_the_change_before_or_of_the_target() -> None:
    in_base64 = base64.b64encode(PLACEHOLDER.encode()).decode()
    found = decode(
        partial(1, a="new", b="full"),
        partial(1, a="newer", b=PLACEHOLDER),
        partial(2, a="stored", b=in_base64),
        partial(2, a="twice", b=[PLACEHOLDER]),
        partial(3, a="unknown", b=PLACEHOLDER),
        (None, {"op": "d", "before": {"id": 2}}),
        partial(2, a="deleted before", b=PLACEHOLDER),
        format="debezium",
    )
    assert [it.unchanged for it in found.changes].count(("b",)) == 5
    fill_unchanged(found, {(2,): {"id": 2, "a": "old", "b": "kept"}}, wanted=None)
    assert [it.row and (it.row["a"], it.row["b"]) for it in found.changes] == [
        ("new", "full"),
        ("newer", "full"),
        ("stored", "kept"),
        ("twice", "kept"),
        None,
    ]
    assert [(it.record, it.reason) for it in found.failures] == [
        (4, "unavailable value"),
        (6, "unavailable value"),
    ]
    assert "use REPLICA IDENTITY FULL" in found.failures[0].message


def test_unchanged_values_that_the_target_does_not_want_are_left_out() -> None:
    found = decode(partial(1, a="x", b=PLACEHOLDER), format="debezium")
    fill_unchanged(found, {}, wanted=("id", "a"))
    assert found.changes == [Change(0, (1,), {"id": 1, "a": "x"})]


def test_unchanged_values_from_before_a_truncation_are_gone() -> None:
    truncate = (None, {"op": "t"})
    found = decode(truncate, partial(1, a="x", b=PLACEHOLDER), format="debezium")
    fill_unchanged(found, {(1,): {"id": 1, "b": "stored"}}, wanted=None)
    assert found.changes == []
    assert len(found.failures) == 1


def test_spaces_around_a_value_do_not_matter() -> None:
    found = decode((None, b' \n{"id": 1} \n'), format="json")
    assert found.changes == [Change(0, (1,), {"id": 1})]


def test_last_change_of_a_key_remains() -> None:
    found = decode((b"1", {"v": 1}), (b"2", {"v": 2}), (b"1", None), format="json")
    assert found.last_by_key() == {(1,): None, (2,): {"id": 2, "v": 2}}
    assert [len(it) for it in in_pieces(found, 2)] == [2, 1]


def test_key_is_one_string() -> None:
    keys = [("a",), (5,), (True,), ("a", 5)]
    assert [document_id(key) for key in keys] == ["a", "5", "true", '["a",5]']


def test_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be one of debezium, json"):
        check_format("orders", "xml")


@pytest.mark.parametrize(
    "text",
    [
        '{"before":null,"after":{"id":1,"op":"d"},"source":{"lsn":5},"op":"u","ts_ms":7}',
        '{"before": null, "after": {"id": 1, "op": "d"}, "op": "c"}',
        '{"op":"r","before":null,"after":{"id":1,"op":"d"}}',
        '{"before":null,"after":{"id":1,"op":"d"},"op":"\\u0075"}',
    ],
)
def test_row_is_found_wherever_it_is_in_the_envelope(text: str) -> None:
    found = decode((None, text.encode()), format="debezium")
    assert found.changes == [Change(0, (1,), {"id": 1, "op": "d"})]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"before":null,"after":{"id":1},"op":"u"', "not JSON"),
        ('{"before":null,"after":{"id":1}', "not JSON"),
        ('{"before":null,"after":{"id":1,}', "not JSON"),
        ('{"before":null,"after":{"id":1}}', "not a Debezium envelope"),
        ('{"before":null,"after":null,"op":"u"}', "has no row"),
        ('{"before":null,"after":{"id":1},"op":"x"}', "unknown operation"),
    ],
)
def test_envelope_that_begins_as_usual_and_is_broken_is_reported(text: str, message: str) -> None:
    found = decode((None, text.encode()), format="debezium")
    assert [message in it.message for it in found.failures] == [True]


def test_row_is_applied_although_the_envelope_is_malformed_behind_it() -> None:
    """Only the row and the operation are read; a row that is cut off is refused."""
    whole = b'{"before":null,"after":{"id":1,"a":2},"source":{,},"op":"c"}'
    cut = b'{"before":null,"after":{"id":1,"a":,"source":{},"op":"c"}'
    found = decode_changes([(None, whole), (None, cut)], ("id",), "debezium")
    assert [(it.record, it.row) for it in found.changes] == [(0, {"id": 1, "a": 2})]
    assert [it.record for it in found.failures] == [1]
