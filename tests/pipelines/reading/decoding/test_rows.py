"""The compiled decoder among many rows, and the schemas that it takes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from tests.pipelines.reading.decoding.values import columns_of, decode, decoder_for, schema_of

ID_AND_NAME = schema_of(id=pa.int64(), name=pa.string())


def test_bad_rows_leave_nothing_behind_among_good_ones() -> None:
    schema = schema_of(
        id=pa.int64(),
        s=pa.struct([("names", pa.list_(pa.string())), ("m", pa.map_(pa.string(), pa.float64()))]),
        at=pa.string(),
    )
    good = b'{"id": %d, "s": {"names": ["a%d", "b"], "m": {"x": 1.5}}, "at": "now"}'
    bad = b'{"id": %d, "s": {"names": ["c%d", "d"], "m": {"y": 2.5, "z": "no"}}}'
    records = [(bad if n % 3 == 0 else good) % (n, n) for n in range(1000)]
    decoded = decode(schema, *records)
    numbers = [n for n in range(1000) if n % 3]
    assert decoded.rows.to_pylist() == numbers
    assert [it.row for it in decoded.failures] == [n for n in range(1000) if n % 3 == 0]
    assert decoded.batch.to_pylist() == [
        {"id": n, "s": {"names": [f"a{n}", "b"], "m": [("x", 1.5)]}, "at": "now"} for n in numbers
    ]


def test_decoder_is_used_again_and_again() -> None:
    decoder = decoder_for(ID_AND_NAME)
    for length in (10_000, 3, 500):
        records = [json.dumps({"id": n, "name": "x" * (n % 50)}).encode() for n in range(length)]
        batch = decoder.decode(columns_of(records)).batch
        assert batch.to_pylist() == [json.loads(it) for it in records]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.time64("ns"), "column v: time64"),
        (pa.duration("us"), "column v: duration"),
        (pa.list_(pa.duration("us")), "column v\\[\\]: duration"),
        (pa.struct([("a", pa.time64("ns"))]), "column v.a: time64"),
        (pa.map_(pa.int32(), pa.string()), "the keys of a map must be strings"),
        (
            pa.struct([pa.field("value", pa.binary(), metadata={"variant": "true"})]),
            "column v: struct",
        ),
    ],
)
def test_schema_with_types_that_json_does_not_have_is_refused(kind: Any, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        decoder_for(schema_of(v=kind))
