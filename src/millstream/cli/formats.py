"""Formats of keys and values on the command line: text, JSON, Avro, hex, base64.

Decoding never fails: bytes that are not UTF-8 are shown with \\x escapes, and values that do not
match the format are shown as text, so that users see the content of a topic. Encoding is strict.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any

from millstream.admin.outgoing import ENCODERS, BadRecord, Encoder
from millstream.admin.values import REGISTRY_HEADER_BYTES, REGISTRY_MAGIC, decode_text
from millstream.cli.failures import CommandFailed, usage_error

AVRO_CONTAINER_MAGIC = b"Obj\x01"


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    AVRO = "avro"
    HEX = "hex"
    BASE64 = "base64"


Decoder = Callable[[bytes], Any]

__all__ = ["Decoder", "Encoder", "Format", "decode_text", "decoder", "encoder", "show"]


def decoder(format_: Format, schema: Path | None = None) -> Decoder:
    """A function from bytes to something JSON can hold."""
    if format_ is Format.AVRO:
        return avro_decoder(schema)
    return {
        Format.TEXT: decode_text,
        Format.JSON: decode_json,
        Format.HEX: lambda data: data.hex(),
        Format.BASE64: lambda data: base64.b64encode(data).decode(),
    }[format_]


def encoder(format_: Format, schema: Path | None = None) -> Encoder:
    """A function from what was typed to the bytes to send."""
    if format_ is Format.AVRO:
        return avro_encoder(schema)
    return strict(ENCODERS[format_])


def decode_json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return decode_text(data)


def strict(convert: Encoder) -> Encoder:
    """Text in another format is an error in the command line."""

    def encode(text: str) -> bytes:
        try:
            return convert(text)
        except BadRecord as error:
            raise usage_error(str(error)) from None

    return encode


def avro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise CommandFailed(
            "Avro needs fastavro; install it with `pip install millstream[avro]`"
        ) from None
    return fastavro


def load_schema(path: Path) -> Any:
    fastavro = avro()
    try:
        return fastavro.parse_schema(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, fastavro.schema.SchemaParseException) as error:
        raise usage_error(f"{path} is not an Avro schema: {error}") from None


def avro_decoder(schema_path: Path | None) -> Decoder:
    """Avro container files carry their schema; bare and registry-framed values need `--schema`."""
    fastavro = avro()
    schema = load_schema(schema_path) if schema_path else None

    def decode(data: bytes) -> Any:
        try:
            if data.startswith(AVRO_CONTAINER_MAGIC):
                return list(fastavro.reader(io.BytesIO(data)))
            if schema is None:
                raise usage_error("this value carries no Avro schema; give one with --schema FILE")
            framed = len(data) >= REGISTRY_HEADER_BYTES and data[0] == REGISTRY_MAGIC
            return read_avro(data, schema, framed)
        except (EOFError, ValueError, IndexError, StopIteration):
            return decode_text(data)

    return decode


def read_avro(data: bytes, schema: Any, framed: bool) -> Any:
    """One value that is all of `data`; a leading 0 may open a frame or be data: try both."""
    for position in (REGISTRY_HEADER_BYTES, 0) if framed else (0,):
        stream = io.BytesIO(data[position:])
        try:
            value = avro().schemaless_reader(stream, schema, None)
        except (EOFError, ValueError, IndexError, StopIteration):
            continue
        if not stream.read(1):
            return value
    raise ValueError("not Avro by this schema")


def avro_encoder(schema_path: Path | None) -> Encoder:
    if schema_path is None:
        raise usage_error("--format avro needs --schema FILE")
    fastavro = avro()
    schema = load_schema(schema_path)

    def encode(text: str) -> bytes:
        stream = io.BytesIO()
        try:
            fastavro.schemaless_writer(stream, schema, json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise usage_error(f"{text!r} does not fit the schema: {error}") from None
        return stream.getvalue()

    return encode


def show(value: Any) -> str:
    """A decoded value as one line of output."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
