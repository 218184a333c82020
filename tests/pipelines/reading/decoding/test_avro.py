"""Avro values as rows: beside fastavro, on good and on mutilated bytes, plain and by id."""

from __future__ import annotations

import gc
import io
import random
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.reading.decoding.results import Decoded
from tests.drawing import draws
from tests.pipelines.reading.decoding import values
from tests.pipelines.reading.decoding.avro_values import (
    ROWS,
    Kind,
    avro,
    logical,
    plain,
    record,
    rows_of,
    text_of,
)
from tests.pipelines.reading.decoding.values import TIMESTAMP, decode, schema_of

MANY = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    max_examples=draws(75),
)


def decode_by(avro_schema: Any, schema: pa.Schema, *given: bytes | None, **options: str) -> Decoded:
    return decode(schema, *given, value_format="avro", avroSchema=text_of(avro_schema), **options)


def read_one(avro_type: Any, kind: Any, value: Any) -> Any:
    """The one field `v`, as fastavro writes it."""
    return read_bytes(avro_type, kind, avro(record(v=avro_type), {"v": value}))


def read_bytes(avro_type: Any, kind: Any, value: bytes) -> Any:
    decoded = decode_by(record(v=avro_type), schema_of(v=kind), value)
    assert decoded.failures == []
    return rows_of(decoded.batch)[0]["v"]


def complaint(avro_type: Any, kind: Any, value: bytes, required: tuple[str, ...] = ()) -> str:
    decoded = decode_by(record(v=avro_type), schema_of(required, v=kind), value)
    assert decoded.batch.num_rows == 0
    [failure] = decoded.failures
    return f"{failure.reason}: {failure.message}"


# Beside fastavro


@MANY
@given(st.data(), ROWS)
def test_decoder_reads_what_fastavro_writes(data: st.DataObject, row: Kind) -> None:
    given_rows = data.draw(st.lists(row.values, min_size=1, max_size=4))
    written = [avro(plain(row.avro), it) for it in given_rows]
    decoded = decode_by(row.avro, pa.schema(list(row.arrow)), *written)
    assert decoded.failures == []
    assert rows_of(decoded.batch) == [row.as_row(it) for it in given_rows]


@MANY
@given(st.data(), ROWS)
def test_decoder_passes_over_what_it_is_not_asked_for(data: st.DataObject, row: Kind) -> None:
    one = data.draw(row.values)
    wanted = data.draw(st.sampled_from([it.name for it in row.arrow]))
    schema = pa.schema([row.arrow.field(wanted)])
    decoded = decode_by(row.avro, schema, avro(plain(row.avro), one))
    assert decoded.failures == []
    assert rows_of(decoded.batch) == [{wanted: row.as_row(one)[wanted]}]


def mutilated(rng: random.Random, value: bytes) -> bytes:
    """Cut short, lengthened, or with some bytes changed."""
    match rng.randrange(4):
        case 0:
            return value[: rng.randrange(len(value) + 1)]
        case 1:
            return value + rng.randbytes(rng.randrange(1, 4))
        case _:
            changed = bytearray(value or b"\0")
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(len(changed))] = rng.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
                )
            return bytes(changed)


def by_fastavro(schema: Any, value: bytes) -> Any:
    stream = io.BytesIO(value)
    parsed = fastavro.parse_schema(plain(schema))
    # A string may be read as binary, which need not be UTF-8.
    found = fastavro.schemaless_reader(
        stream, parsed, None, handle_unicode_errors="surrogateescape"
    )
    assert stream.read() == b""
    return found


@MANY
@given(st.data(), ROWS, st.integers(0, 2**32))
def test_decoder_takes_no_mutilated_value_for_another(
    data: st.DataObject, row: Kind, seed: int
) -> None:
    rng = random.Random(seed)
    good = avro(plain(row.avro), data.draw(row.values))
    bad = [mutilated(rng, good) for _ in range(20)]
    decoded = decode_by(row.avro, pa.schema(list(row.arrow)), *bad, good)
    numbers = range(len(bad) + 1) if decoded.rows is None else decoded.rows.to_pylist()
    assert numbers[-1] == len(bad)
    assert sorted([*numbers, *(it.row for it in decoded.failures)]) == list(range(len(bad) + 1))
    found = rows_of(decoded.batch)
    for place, number in enumerate(numbers):
        expected = by_fastavro(row.avro, [*bad, good][number])
        assert repr(found[place]) == repr(row.as_row(expected))  # by repr, as NaN is not itself


# Values


@pytest.mark.parametrize(
    ("avro_type", "kind", "value", "expected"),
    [
        ("long", pa.float64(), 2**53 + 1, 2.0**53),
        ("int", pa.float32(), 7, 7.0),
        (["null", "string"], pa.string(), None, None),
        (["int", "string"], pa.int64(), 5, 5),
        (
            logical("bytes", "decimal", precision=4, scale=2),
            pa.decimal128(10, 4),
            Decimal("-1.25"),
            Decimal("-1.2500"),
        ),
        (
            logical("bytes", "decimal", precision=4, scale=2),
            pa.decimal128(3, 1),
            Decimal("1.50"),
            Decimal("1.5"),
        ),
        (
            logical("string", "uuid"),
            pa.string(),
            "12345678-1234-5678-1234-567812345678",
            "12345678-1234-5678-1234-567812345678",
        ),
        ({"type": "fixed", "name": "f", "size": 2}, pa.binary(), b"ab", b"ab"),
    ],
)
def test_decoder_promotes_as_avro_does(
    avro_type: Any, kind: Any, value: Any, expected: Any
) -> None:
    assert read_one(avro_type, kind, value) == expected


def test_uuid_of_sixteen_bytes_is_text() -> None:
    uuid = {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}
    expected = "00112233-4455-6677-8899-aabbccddeeff"
    assert read_bytes(uuid, pa.string(), bytes.fromhex(expected.replace("-", ""))) == expected


def test_union_of_several_is_a_struct_of_members_as_in_spark() -> None:
    members = pa.struct([("member0", pa.int32()), ("member1", pa.string())])
    union = ["int", "null", "string"]
    assert read_one(union, members, 5) == {"member0": 5, "member1": None}
    assert read_one(union, members, "a") == {"member0": None, "member1": "a"}
    assert read_one(union, members, None) is None


def test_blocks_of_items_may_have_a_size() -> None:
    blocks = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00"
    ints = {"type": "array", "items": "int"}
    assert read_bytes(ints, pa.list_(pa.int32()), blocks) == [1, 2, 3]


def test_value_that_is_no_record_is_the_only_column() -> None:
    decoded = decode_by("string", schema_of(value=pa.string()), avro("string", "a"))
    assert decoded.batch.to_pylist() == [{"value": "a"}]
    with pytest.raises(ConfigError, match="no records, and the row has 2 columns"):
        decode_by("string", schema_of(a=pa.string(), b=pa.string()))


def test_record_that_contains_itself_is_passed_over() -> None:
    tree = record("tree", x="int", next=["null", "tree"])
    value = {"x": 1, "next": {"x": 2, "next": {"x": 3, "next": None}}}
    decoded = decode_by(tree, schema_of(x=pa.int32()), avro(tree, value))
    assert decoded.batch.to_pylist() == [{"x": 1}]


def test_tombstone_is_a_row_of_nulls_unless_one_is_required() -> None:
    assert decode_by(record(v="int"), schema_of(v=pa.int32()), None).batch.to_pylist() == [
        {"v": None}
    ]
    decoded = decode_by(record(v="int"), schema_of(["v"], v=pa.int32()), None)
    assert decoded.failures == [
        (0, "missing field", "the record has no value, and field v may not be null")
    ]


# Bad bytes

DEEP = record("tree", next=["null", "tree"])


@pytest.mark.parametrize(
    ("avro_type", "kind", "value", "expected"),
    [
        ("int", pa.int32(), b"", "malformed: the value is empty"),
        ("int", pa.int32(), b"\x80", "malformed: it ends too early"),
        ("int", pa.int32(), b"\x02\x02", "malformed: more follows after its end, at byte 1"),
        ("int", pa.int32(), b"\xff\xff\xff\xff\x1f", "malformed: a number with too many bits"),
        ("long", pa.int64(), b"\xff" * 9 + b"\x02", "malformed: a number with too many bits"),
        ("long", pa.int64(), b"\xff" * 11, "malformed: a number with too many bits"),
        ("long", pa.int8(), b"\x80\x02", "wrong type: field v is too large for byte"),
        ("string", pa.string(), b"\x01", "malformed: a negative length, at byte 0"),
        ("string", pa.string(), b"\x08abc", "malformed: it ends too early"),
        ("string", pa.string(), b"\xfe" + b"\xff" * 8 + b"\x01", "malformed: it ends too early"),
        ("string", pa.string(), b"\x04a\xff", "malformed: not UTF-8 at byte 2"),
        ("boolean", pa.bool_(), b"\x02", "malformed: a boolean that is neither 0 nor 1"),
        ("double", pa.float64(), b"1234567", "malformed: it ends too early"),
        (["null", "int"], pa.int32(), b"\x04", "malformed: a branch of a union"),
        (["null", "int"], pa.int32(), b"\x01", "malformed: a branch of a union"),
        (["int", "string"], pa.int32(), b"\x02\x02a", "wrong type: field v is string, not int"),
        (
            {"type": "array", "items": "int"},
            pa.list_(pa.int32()),
            b"\xfe\xff\xff\xff\x0f\x02",
            "malformed: it ends too early",
        ),
        (
            {"type": "array", "items": "int"},
            pa.list_(pa.int32()),
            b"\xff" * 9 + b"\x01\x00",
            "malformed: a number with too many bits",
        ),
        (
            {"type": "array", "items": "null"},
            pa.list_(pa.int32()),
            b"\xfe\xff\xff\xff\xff\x0f\x00",
            "malformed: more items than",
        ),
        (
            {"type": "array", "items": "int"},
            pa.list_(pa.int32()),
            b"\x01\x08\x02\x00\x00\x00\x00",
            "malformed: a block of items",
        ),
        (
            {"type": "map", "values": "int"},
            pa.map_(pa.string(), pa.int32()),
            b"\x04\x02a\x02\x02a\x04\x00",
            "malformed: field v has a key twice",
        ),
        (
            logical("bytes", "decimal", precision=9, scale=0),
            pa.decimal128(3, 0),
            b"\x04\x03\xe8",
            "wrong type: field v does not fit decimal(3,0) exactly",
        ),
        (
            logical("bytes", "decimal", precision=9, scale=2),
            pa.decimal128(9, 1),
            b"\x02\x0f",
            "wrong type: field v does not fit decimal(9,1) exactly",
        ),
        (
            logical("bytes", "decimal", precision=9, scale=0),
            pa.decimal128(38, 0),
            b"\x26\x01" + b"\0" * 18,
            "wrong type: field v does not fit decimal(38,0) exactly",
        ),
        (
            logical("int", "time-millis"),
            pa.time64("ns"),
            b"\x01",
            "wrong type: field v is too large for time",
        ),
        (
            DEEP,
            pa.struct([("x", pa.int32())]),
            b"\x02" * 600 + b"\x00",
            "malformed: nested deeper than 512 levels",
        ),
    ],
)
def test_decoder_reports_the_problem(
    avro_type: Any, kind: Any, value: bytes, expected: str
) -> None:
    assert expected in complaint(avro_type, kind, value)


def test_null_is_refused_where_it_may_not_be() -> None:
    assert complaint(["null", "int"], pa.int32(), b"\0", ("v",)) == (
        "missing field: field v is null, and may not be"
    )


def test_moments_beyond_the_column_are_refused() -> None:
    value = avro("long", 2**62)
    assert "too large for timestamp" in complaint(
        logical("long", "timestamp-millis"), TIMESTAMP, value
    )


# Options


def test_decoder_needs_a_schema() -> None:
    with pytest.raises(ConfigError, match="avroSchema"):
        values.decoder_for(schema_of(v=pa.int32()), "avro")


def test_schema_may_be_a_file(tmp_path: Any) -> None:
    path = tmp_path / "r.avsc"
    path.write_text(text_of(record(v="int")))
    for given_path in (str(path), f"file://{path}"):
        decoded = decode(
            schema_of(v=pa.int32()), b"\x02", value_format="avro", avroSchema=given_path
        )
        assert decoded.batch.to_pylist() == [{"v": 1}]
    with pytest.raises(ConfigError, match="neither JSON nor a file"):
        decode(schema_of(v=pa.int32()), value_format="avro", avroSchema="nowhere.avsc")


def test_column_that_avro_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="field v is string, not int"):
        decode_by(record(v="string"), schema_of(v=pa.int32()))
    with pytest.raises(ConfigError, match="declare it long, and convert it as its unit asks"):
        decode_by(record(v="long"), schema_of(v=TIMESTAMP))


@pytest.mark.slow
def test_decoder_leaves_nothing_behind() -> None:
    gc.collect()
    decoder = values.decoder_for(
        schema_of(v=pa.int32()), "avro", avroSchema=text_of(record(v="int"))
    )
    del decoder
    gc.collect()
    assert not [it for it in gc.get_objects() if type(it).__name__ == "AvroValuesDecoder"]
