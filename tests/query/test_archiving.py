"""The decoders of the archive's typed columns: declared JSON, and Avro with a registry."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from millstream.archive.rows import row_groups
from millstream.archive.typed import DecodedColumns, Decoder
from millstream.errors import MillstreamError
from millstream.query.archiving import key_decoder, value_decoder
from millstream.records.record import Record, encode_batch
from tests.peers.schema_registry import SchemaRegistry, running_registry

FIRST: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
SECOND: dict[str, Any] = {
    **FIRST,
    "fields": [*FIRST["fields"], {"name": "note", "type": ["null", "string"], "default": None}],
}


def framed(schema: dict[str, Any], number: int, value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema, value)
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


def decode(registry: SchemaRegistry, contents: list[bytes]) -> dict[str, list[Any]]:
    decoder = value_decoder("orders", "avro", {"schema.registry.url": registry.url})
    assert decoder is not None
    extension = DecodedColumns(decoder)
    records = [Record(n, 0, None, it, ()) for n, it in enumerate(contents)]
    (rows,) = row_groups(
        [encode_batch(records)], first_offset=0, end_offset=len(contents), aborted=()
    )
    names = [*decoder.schema.names, "is_decoded"]
    arrays = (it.to_pylist() for it in extension.arrays(rows))
    return dict(zip(names, arrays, strict=True))


def test_values_of_all_versions_have_the_columns_of_the_newest() -> None:
    with running_registry() as registry:
        first = registry.add("orders-value", FIRST)
        one = framed(FIRST, first, {"id": 1, "at": 0})
        assert decode(registry, [one])["id"] == [1]
        second = registry.add("orders-value", SECOND)
        two = framed(SECOND, second, {"id": 2, "at": 86_400_000, "note": "late"})
        found = decode(registry, [one, two, b"\0\0\0\0\x63xx", b"{}", two + b"?"])
    assert found["id"] == [1, 2, None, None, None]
    assert found["note"] == [None, "late", None, None, None]
    assert found["is_decoded"] == [True, True, False, False, False]
    assert found["at"][1].isoformat() == "1970-01-02T00:00:00+00:00"


def test_topic_without_a_schema_has_no_columns_yet() -> None:
    with running_registry() as registry:
        assert value_decoder("orders", "avro", {"schema.registry.url": registry.url}) is None


def test_registry_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.query.archiving.REGISTRY_PATIENCE_MS", 100)
    with pytest.raises(MillstreamError, match="did not answer about subject orders-value"):
        value_decoder("orders", "avro", {"schema.registry.url": "http://127.0.0.1:1"})
    with pytest.raises(MillstreamError, match=r"registry\.url is not set"):
        value_decoder("orders", "avro", {})


def test_declared_columns_are_those_of_the_setting() -> None:
    decoder = value_decoder("orders", "json: id bigint, at timestamp", {})
    assert decoder is not None
    assert decoder.schema == pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


def test_keys_of_avro_have_a_subject_of_their_own() -> None:
    with running_registry() as registry:
        access = {"schema.registry.url": registry.url}
        registry.add("orders-value", FIRST)
        assert key_decoder("orders", "avro", access) is None
        number = registry.add("orders-key", {"type": "string"})
        decoder = key_decoder("orders", "avro", access)
        assert decoder is not None
        keys = [framed({"type": "string"}, number, "alice"), b"plain", None]  # type: ignore[arg-type]
        assert decode_keys(decoder, keys) == (["alice", None, None], [True, False, None])


def test_keys_that_are_text_are_one_column() -> None:
    decoder = key_decoder("orders", "string", {})
    assert decoder is not None
    keys = [b"alice", b"", None, b"\xff", "Zürich".encode()]
    found = (["alice", "", None, None, "Zürich"], [True, True, None, False, True])
    assert decode_keys(decoder, keys) == found


def decode_keys(decoder: Decoder, keys: list[bytes | None]) -> tuple[list[Any], list[Any]]:
    records = [Record(n, 0, key, b"", ()) for n, key in enumerate(keys)]
    (rows,) = row_groups([encode_batch(records)], first_offset=0, end_offset=len(keys), aborted=())
    contents, flags = DecodedColumns(None, decoder).arrays(rows)
    return contents.to_pylist(), flags.to_pylist()
