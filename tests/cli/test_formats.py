"""Keys and values as text, JSON, Avro, hex and base64."""

from __future__ import annotations

import io
import json
from pathlib import Path

import fastavro
import pytest

from millstream.cli.failures import CommandFailed
from millstream.cli.formats import Format, decoder, encoder, show

SCHEMA = {
    "type": "record",
    "name": "Reading",
    "fields": [{"name": "n", "type": "long"}, {"name": "unit", "type": "string"}],
}
READING = {"n": 7, "unit": "°C"}


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "reading.avsc"
    path.write_text(json.dumps(SCHEMA))
    return path


def encoded(value: dict[str, object]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, value)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("format_", "text", "data"),
    [
        (Format.TEXT, "värde", "värde".encode()),
        (Format.JSON, '{"a": "ä"}', '{"a":"ä"}'.encode()),
        (Format.HEX, "00ff", b"\x00\xff"),
        (Format.BASE64, "AP8=", b"\x00\xff"),
    ],
)
def test_format_encodes(format_: Format, text: str, data: bytes) -> None:
    assert encoder(format_)(text) == data


@pytest.mark.parametrize(
    ("format_", "data", "value"),
    [
        (Format.TEXT, b"a\xff", "a\\xff"),
        (Format.JSON, b'{"a": 1}', {"a": 1}),
        (Format.JSON, b"not json", "not json"),
        (Format.HEX, b"\x00\xff", "00ff"),
        (Format.BASE64, b"\x00\xff", "AP8="),
    ],
)
def test_format_decodes(format_: Format, data: bytes, value: object) -> None:
    assert decoder(format_)(data) == value


def test_avro_goes_both_ways(schema: Path) -> None:
    data = encoder(Format.AVRO, schema)(json.dumps(READING))
    assert data == encoded(READING)
    assert decoder(Format.AVRO, schema)(data) == READING


def test_avro_framed_by_a_schema_registry_is_read(schema: Path) -> None:
    framed = b"\x00" + (41).to_bytes(4) + encoded(READING)
    assert decoder(Format.AVRO, schema)(framed) == READING


def test_avro_that_happens_to_begin_with_zero_is_read(schema: Path) -> None:
    """n=0 is encoded as the byte that also opens a registry's frame."""
    value = {"n": 0, "unit": "some unit"}
    assert encoded(value)[0] == 0
    assert decoder(Format.AVRO, schema)(encoded(value)) == value


def test_avro_container_needs_no_schema() -> None:
    stream = io.BytesIO()
    fastavro.writer(stream, SCHEMA, [READING])
    assert decoder(Format.AVRO)(stream.getvalue()) == [READING]


def test_avro_value_without_schema_says_so() -> None:
    with pytest.raises(CommandFailed, match="--schema"):
        decoder(Format.AVRO)(encoded(READING))
    with pytest.raises(CommandFailed, match="--schema"):
        encoder(Format.AVRO)


def test_avro_decoder_shows_other_bytes_as_text(schema: Path) -> None:
    assert decoder(Format.AVRO, schema)(b"plain text") == "plain text"


def test_avro_schema_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.avsc"
    path.write_text('{"type": "no such type"}')
    with pytest.raises(CommandFailed, match="is not an Avro schema"):
        decoder(Format.AVRO, path)


def test_show_writes_structures_as_json() -> None:
    assert show("text") == "text"
    assert show({"ä": [1]}) == '{"ä": [1]}'
