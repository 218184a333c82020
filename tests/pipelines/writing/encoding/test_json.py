"""JSON of columns, against Python's own reader of it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.writing.encoding.json import JsonEncoder

MOMENT = datetime(2024, 5, 1, 10, 0, 0, 120_000, tzinfo=UTC)


def encode(batch: pa.RecordBatch) -> list[Any]:
    values = JsonEncoder(batch.schema).encode(batch)
    assert values.type == pa.binary()
    return [json.loads(it, parse_float=Decimal) for it in values.to_pylist()]


def column(values: list[Any], kind: Any) -> list[Any]:
    batch = pa.record_batch({"value": pa.array(values, kind)})
    return [row["value"] for row in encode(batch)]


def test_encode_writes_columns_in_their_order() -> None:
    batch = pa.record_batch({"b": pa.array([1, None]), "a": pa.array(["x", 'q"\\\n\u0001ü'])})
    values = JsonEncoder(batch.schema).encode(batch).to_pylist()
    assert values[0] == b'{"b":1,"a":"x"}'
    assert json.loads(values[1]) == {"b": None, "a": 'q"\\\n\u0001ü'}


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (pa.int64(), [2**63 - 1, -(2**63), None], [2**63 - 1, -(2**63), None]),
        (pa.bool_(), [True, False, None], [True, False, None]),
        (pa.decimal128(38, 9), [Decimal("12345678901234567.123456789")], None),
        (pa.date32(), [date(2024, 5, 1)], ["2024-05-01"]),
        (pa.binary(), [b"\xff\x00", None], ["/wA=", None]),
        (pa.float64(), [1.5, float("nan"), float("-inf"), None], [1.5, None, None, None]),
        (pa.list_(pa.int32()), [[1, None], [], None], [[1, None], [], None]),
        (pa.map_(pa.string(), pa.int32()), [[("k", 1)], None], [{"k": 1}, None]),
        (pa.struct([("x", pa.int32())]), [{"x": 1}, None], [{"x": 1}, None]),
    ],
)
def test_encode_keeps_values_of_a_type(kind: Any, values: list[Any], expected: Any) -> None:
    assert column(values, kind) == (values if expected is None else expected)


def test_encode_writes_timestamps_as_iso_8601_wherever_they_stand() -> None:
    kind = pa.timestamp("us", tz="UTC")
    nested = pa.struct([("at", pa.list_(kind))])
    assert column([MOMENT, None], kind) == ["2024-05-01T10:00:00.120000Z", None]
    assert column([{"at": [MOMENT, None]}, None], nested) == [
        {"at": ["2024-05-01T10:00:00.120000Z", None]},
        None,
    ]


def test_encode_leaves_the_z_off_where_there_is_no_zone() -> None:
    naive = MOMENT.replace(tzinfo=None)
    assert column([naive], pa.timestamp("us")) == ["2024-05-01T10:00:00.120000"]


def test_encode_takes_slices_for_what_they_are() -> None:
    lists = pa.array([[MOMENT], [], None, [MOMENT, MOMENT]], pa.list_(pa.timestamp("us", "UTC")))
    batch = pa.record_batch({"id": pa.array([1, 2, 3, 4]), "lists": lists}).slice(1, 3)
    text = "2024-05-01T10:00:00.120000Z"
    assert encode(batch) == [
        {"id": 2, "lists": []},
        {"id": 3, "lists": None},
        {"id": 4, "lists": [text, text]},
    ]


def test_encode_of_no_rows_is_empty() -> None:
    batch = pa.record_batch({"at": pa.array([], pa.timestamp("us", "UTC"))})
    assert encode(batch) == []


@pytest.mark.parametrize(
    "kind", [pa.duration("us"), pa.map_(pa.int32(), pa.int32()), pa.list_(pa.duration("us"))]
)
def test_encoder_refuses_a_column_that_json_cannot_hold(kind: Any) -> None:
    with pytest.raises(ConfigError, match="column odd"):
        JsonEncoder(pa.schema([("odd", kind)]))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (400_000_000_000_000_000, pa.timestamp("us")),
        (2_932_897, pa.date32()),
        (-719_163, pa.date32()),
    ],
)
def test_encode_refuses_years_of_more_than_four_digits(number: int, kind: Any) -> None:
    with pytest.raises(ConfigError, match="9999"):
        column([None, number], kind)


def test_encode_writes_the_first_and_the_last_date_that_readers_know() -> None:
    values = column([date.min, date.max, None], pa.date32())
    assert values == ["0001-01-01", "9999-12-31", None]


NOT_UTF8 = pa.array([b"ok", b"a\xff", b"\xed\xa0\x80!", None, b"fine"])


def test_encode_writes_what_is_not_utf8_as_replacement_characters() -> None:
    for strings in (
        NOT_UTF8.view(pa.string()),
        NOT_UTF8.cast(pa.large_binary()).view("large_string"),
    ):
        found = encode(pa.record_batch({"id": pa.array(range(5)), "word": strings}).slice(1))
        assert [it["id"] for it in found] == [1, 2, 3, 4]
        assert found[0]["word"] == "a\ufffd"
        assert found[1]["word"].strip("\ufffd") == "!"
        assert [it["word"] for it in found[2:]] == [None, "fine"]


def test_encode_finds_what_is_not_utf8_wherever_it_stands() -> None:
    words = NOT_UTF8.view(pa.string()).slice(1, 1)
    ends = pa.array([0, 1], pa.int32())
    batch = pa.record_batch(
        {
            "struct": pa.StructArray.from_arrays([words], names=["word"]),
            "list": pa.ListArray.from_arrays(ends, words),
            "map": pa.MapArray.from_arrays(ends, words, words),
        }
    )
    word = "a\ufffd"
    assert encode(batch) == [{"struct": {"word": word}, "list": [word], "map": {word: word}}]
