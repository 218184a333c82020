"""Keys, values and headers of records as people read them: JSON, Avro, text or hex.

The format is guessed from the bytes unless the user names one. Nothing here fails: what is not in
the named format is shown in the one that it has, with a note.

Shown text contains no control characters, no escape sequences of terminals and no marks that change
the direction of text: they are replaced by symbols and escapes, so that a record cannot disguise
itself.
"""

from __future__ import annotations

import codecs
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from millstream.admin.json_text import parse_json, plain, pretty
from millstream.errors import MillstreamError
from millstream.models import dataclass

if TYPE_CHECKING:
    from millstream.client.avro_schema import AvroType
    from millstream.client.schema_registry import RegisteredSchema

    SchemaOf = Callable[[int], RegisteredSchema]  # a registry's `schema`

PREVIEW_CHARACTERS = 300
PARSED_BYTES_MAX = 1024 * 1024  # of JSON and Avro; larger values are shown as text
TEXT_SHOWN_BYTES = 256 * 1024
HEX_SHOWN_BYTES = 4096
HEX_LINE_BYTES = 16
REGISTRY_MAGIC = 0  # Confluent's wire format: this byte, then the schema's id in four more
REGISTRY_HEADER_BYTES = 5
_INTEGERS = {2: ">h", 4: ">i", 8: ">q"}


class Form(StrEnum):
    """The format of a key or value."""

    AUTO = "auto"
    JSON = "json"
    AVRO = "avro"
    TEXT = "text"
    HEX = "hex"


@dataclass(frozen=True)
class Shown:
    """A key or value for people."""

    form: str  # json, avro, text, hex, null or empty
    size_bytes: int
    text: str = ""  # indented JSON, or text; cut
    hex_lines: Sequence[HexLine] = ()
    schema_id: int | None = None
    note: str = ""  # why it is not shown as the user wanted, or what else it may be
    is_cut: bool = False


@dataclass(frozen=True)
class HexLine:
    address: str
    hexadecimal: str
    characters: str


@dataclass
class Decoder:
    """Decodes by one registry, if there is one; keeps the schemas that it has parsed."""

    schema_of: SchemaOf | None = None
    _schemas: dict[int, AvroType] = field(default_factory=dict)

    def show(self, data: bytes | None, form: Form = Form.AUTO, size_bytes: int = -1) -> Shown:
        """The whole of a key or value, of which `data` may be the first part only."""
        size = len(data or b"") if size_bytes < 0 else size_bytes
        if data is None:
            return Shown("null", 0)
        if not size:
            return Shown("empty", 0)
        is_cut, note = size > len(data), ""
        if form is not Form.HEX:
            value, schema_id, note = self._value(data, form, is_cut)
            if value is not _NONE:
                kind = "avro" if schema_id is not None and note != _FRAMED else "json"
                text = visible(pretty(value)[:TEXT_SHOWN_BYTES])
                return Shown(kind, size, text, _hex(data), schema_id, note)
            found = _text(data[:TEXT_SHOWN_BYTES], is_cut=is_cut or len(data) > TEXT_SHOWN_BYTES)
            if found is not None and (form is Form.TEXT or is_readable(found)):
                shown_cut = is_cut or len(data) > TEXT_SHOWN_BYTES
                return Shown("text", size, visible(found), _hex(data), None, note, shown_cut)
            note = note or (_NO_TEXT if form in (Form.TEXT, Form.JSON) else "")
        is_cut = is_cut or len(data) > HEX_SHOWN_BYTES
        return Shown("hex", size, "", _hex(data), None, note or _number(data, size), is_cut)

    def preview(self, data: bytes | None, form: Form = Form.AUTO, size_bytes: int = -1) -> Shown:
        """One line of it, for a list."""
        size = len(data or b"") if size_bytes < 0 else size_bytes
        if data is None:
            return Shown("null", 0)
        if not size:
            return Shown("empty", 0)
        value, schema_id = _NONE, None
        is_framed = data[0] == REGISTRY_MAGIC and len(data) >= REGISTRY_HEADER_BYTES
        if form is not Form.HEX and (form is Form.AVRO or is_framed) and size == len(data):
            value, schema_id, _ = self._value(data, form, is_cut=False)
        if value is not _NONE and schema_id is not None:
            return _line("avro", json.dumps(_jsonable(value), ensure_ascii=False), size, schema_id)
        first = data[: 4 * PREVIEW_CHARACTERS]
        text = None if form is Form.HEX else _text(first, is_cut=len(first) < size)
        if text is not None and (form is Form.TEXT or is_readable(text)):
            return _line("json" if looks_like_json(text) else "text", text, size)
        note = _number(data, size)
        return _line("hex", data[:PREVIEW_CHARACTERS].hex(" "), size, None, note)

    def _value(self, data: bytes, form: Form, is_cut: bool) -> tuple[Any, int | None, str]:
        """The decoded value or `_NONE`, the id of its schema, and a note."""
        if form is Form.TEXT:
            return _NONE, None, ""
        if is_cut or len(data) > PARSED_BYTES_MAX:
            note = f"more than {PARSED_BYTES_MAX // 1024} KiB: shown as text, not as a tree"
            return _NONE, None, note
        is_framed = len(data) > REGISTRY_HEADER_BYTES and data[0] == REGISTRY_MAGIC
        if is_framed and form in (Form.AUTO, Form.AVRO):
            found = self._by_schema(data, form)
            if found is not None:
                return found
        if form is Form.AVRO:
            return _NONE, None, "not in the wire format of a schema registry (0, schema id, Avro)"
        if form is Form.AUTO and data.lstrip()[:1] not in (b"{", b"[", b'"'):
            return _NONE, None, ""
        try:
            return parse_json(data), None, ""
        except (ValueError, UnicodeDecodeError) as error:
            return _NONE, None, f"not JSON: {error}" if form is Form.JSON or _deep(error) else ""

    def _by_schema(self, data: bytes, form: Form) -> tuple[Any, int | None, str] | None:
        schema_id = int.from_bytes(data[1:REGISTRY_HEADER_BYTES], "big")
        payload = data[REGISTRY_HEADER_BYTES:]
        if payload[:1] in (b"{", b"["):  # JSON by a JSON Schema
            try:
                return parse_json(payload), schema_id, _FRAMED
            except (ValueError, UnicodeDecodeError):
                pass
        if self.schema_of is None:
            note = f"perhaps Avro with schema {schema_id}: name a registry with schema.registry.url"
            return (_NONE, None, note) if form is Form.AVRO else None
        # Here, since a console without a registry, which is limited in memory, needs none of it.
        from millstream.admin.avro import decode_avro
        from millstream.client.avro_schema import BadSchema, parse_schema

        try:
            if schema_id not in self._schemas:
                found = self.schema_of(schema_id)
                self._schemas[schema_id] = parse_schema(found.text, found.references)
            return decode_avro(payload, self._schemas[schema_id]), schema_id, ""
        except BadSchema as error:
            return _NONE, None, f"schema {schema_id}: {error}"
        except MillstreamError as error:
            return _NONE, None, str(error)
        except (ValueError, RecursionError) as error:
            return _NONE, None, f"not Avro by schema {schema_id}: {error}"


class _None:
    """No value: null is one."""


_NONE: Any = _None()
_FRAMED = "JSON in the wire format of a schema registry"
_NO_TEXT = "not UTF-8 text"


def _deep(error: Exception) -> bool:
    return "levels" in str(error)


def _line(form: str, text: str, size: int, schema_id: int | None = None, note: str = "") -> Shown:
    flat = " ".join(text.split())
    is_cut = len(flat) > PREVIEW_CHARACTERS or len(text.encode("utf-8", "replace")) < size
    return Shown(
        form,
        size,
        visible(flat[:PREVIEW_CHARACTERS]),
        schema_id=schema_id,
        note=note,
        is_cut=is_cut and form != "avro",
    )


def _jsonable(value: Any) -> Any:
    return plain(value)


def looks_like_json(text: str) -> bool:
    """By its first character: a preview may be cut."""
    return text.lstrip()[:1] in ("{", "[")


def _text(data: bytes, *, is_cut: bool) -> str | None:
    """UTF-8, of which the last character may be cut; else None."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(data, final=not is_cut)
    except UnicodeDecodeError:
        return None


def decode_text(data: bytes) -> str:
    """UTF-8; other bytes as \\x escapes."""
    return data.decode("utf-8", errors="backslashreplace")


def is_readable(text: str) -> bool:
    """Whether text is meant to be read, rather than bytes that happen to be UTF-8."""
    odd = sum(1 for it in text if ord(it) < 0x20 and it not in "\t\n\r\x1b")
    return odd * 10 <= len(text)


def _table() -> dict[int, str]:
    shown = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"}
    shown[ord("\r")] = ""
    shown[0x7F] = "\u2421"
    shown |= {code: f"\\x{code:02x}" for code in range(0x80, 0xA0)}
    hidden = [0xAD, 0x61C, 0xFEFF, *range(0x200B, 0x2010), *range(0x2028, 0x202F)]
    shown |= {code: f"\\u{code:04x}" for code in [*hidden, *range(0x2060, 0x2070)]}
    return shown | {code: f"\\x{code - 0xDC00:02x}" for code in range(0xDC80, 0xDD00)}


_VISIBLE = _table()


def visible(text: str) -> str:
    """Text whose control characters, direction marks and undecodable bytes can be seen."""
    return text.translate(_VISIBLE)


def _number(data: bytes, size: int) -> str:
    if size not in _INTEGERS or len(data) != size:
        return ""
    return f"as a big-endian integer: {struct.unpack(_INTEGERS[size], data)[0]}"


def _hex(data: bytes) -> list[HexLine]:
    return hex_lines(data[:HEX_SHOWN_BYTES])


def hex_lines(data: bytes, first: int = 0) -> list[HexLine]:
    """A hex dump, 16 bytes per line."""
    lines = []
    for start in range(0, len(data), HEX_LINE_BYTES):
        part = data[start : start + HEX_LINE_BYTES]
        pairs = f"{part[:8].hex(' ')}  {part[8:].hex(' ')}".rstrip()
        characters = "".join(chr(it) if 0x20 <= it < 0x7F else "." for it in part)
        lines.append(HexLine(f"{first + start:08x}", pairs, characters))
    return lines
