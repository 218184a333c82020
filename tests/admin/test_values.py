"""Forms of keys and values, guessed and named; text that wants to deceive."""

from __future__ import annotations

import io
import json

import fastavro
import pytest

from millstream.admin.values import (
    HEX_SHOWN_BYTES,
    PREVIEW_CHARACTERS,
    Decoder,
    Form,
    decode_text,
    hex_lines,
    visible,
)
from millstream.client.schema_registry import RegisteredSchema, UnknownSchema

SCHEMA = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}


def registry(schema_id: int) -> RegisteredSchema:
    if schema_id != 7:
        raise UnknownSchema(f"no schema {schema_id}")
    return RegisteredSchema(json.dumps(SCHEMA))


def avro(order: int, schema_id: int = 7) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, SCHEMA, {"id": order})
    return b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()


@pytest.mark.parametrize(
    ("data", "form"),
    [
        (None, "null"),
        (b"", "empty"),
        (b'{"a": 1}', "json"),
        (b" [1, 2]\n", "json"),
        (b"hello", "text"),
        ("grüße".encode(), "text"),
        (b"12", "text"),
        (b"{not json", "text"),
        (b"\xff\xfe\x00\x01", "hex"),
        (b"\x00\x00\x00\x00\x00\x00\x00\x2a", "hex"),
    ],
)
def test_show_guesses_the_form(data: bytes | None, form: str) -> None:
    assert Decoder().show(data).form == form


def test_show_tells_the_integer_in_a_few_bytes() -> None:
    assert Decoder().show(b"\0\0\0\0\0\0\0\x2a").note == "as a big-endian integer: 42"


def test_show_obeys_a_form_that_fits() -> None:
    assert Decoder().show(b'{"a": 1}', Form.TEXT).form == "text"
    assert Decoder().show(b'{"a": 1}', Form.HEX).form == "hex"
    assert Decoder().show(b"12", Form.JSON).form == "json"


def test_show_says_why_a_form_does_not_fit() -> None:
    shown = Decoder().show(b"hello", Form.JSON)
    assert shown.form == "text"
    assert "not JSON" in shown.note
    shown = Decoder().show(b"hello", Form.AVRO)
    assert shown.form == "text"
    assert "registry" in shown.note
    assert "UTF-8" in Decoder().show(b"\xff\xfe\xfd", Form.TEXT).note


def test_show_decodes_avro_by_the_registry() -> None:
    shown = Decoder(registry).show(avro(12))
    assert (shown.form, shown.schema_id) == ("avro", 7)
    assert json.loads(shown.text) == {"id": 12}
    assert Decoder(registry).preview(avro(12)).text == '{"id": 12}'


def test_show_tells_what_is_wrong_with_avro() -> None:
    assert "no schema 9" in Decoder(registry).show(avro(1, schema_id=9)).note
    assert "not Avro by schema 7" in Decoder(registry).show(avro(1) + b"x").note
    assert "schema.registry.url" in Decoder().show(avro(1), Form.AVRO).note


def test_show_decodes_framed_json() -> None:
    shown = Decoder().show(b'\0\0\0\0\x05{"a": 1}')
    assert (shown.form, shown.schema_id) == ("json", 5)


def test_show_survives_deep_json() -> None:
    shown = Decoder().show(b"[" * 100_000)
    assert shown.form == "text"
    assert "levels" in shown.note
    assert Decoder().show(b"[" * 300 + b"]" * 300).form == "json"


def test_show_cuts_what_is_huge() -> None:
    shown = Decoder().show(b"x" * 2_000_000)
    assert shown.form == "text"
    assert shown.is_cut
    assert len(shown.text) < 300_000
    assert shown.size_bytes == 2_000_000
    shown = Decoder().show(b"\xff" * 2_000_000)
    assert shown.form == "hex"
    assert shown.is_cut
    assert len(shown.hex_lines) == HEX_SHOWN_BYTES // 16


def test_preview_is_one_short_line() -> None:
    shown = Decoder().preview(b'{\n  "a": 1,\n  "b": "' + b"x" * 5000 + b'"}')
    assert shown.form == "json"
    assert shown.is_cut
    assert len(shown.text) <= PREVIEW_CHARACTERS
    assert "\n" not in shown.text
    assert not Decoder().preview(b"abc").is_cut
    assert Decoder().preview(b"abc", size_bytes=9).is_cut


def test_preview_of_text_cut_within_a_character_is_text() -> None:
    data = ("ü" * 3000).encode()
    assert Decoder().preview(data[:1001], size_bytes=len(data)).form == "text"


def test_visible_disarms_controls_and_directions() -> None:
    shown = visible("\x1b[31mred\x00\x07 \u202egnp.exe \u200b \udcff \x9b2J")
    assert shown == "␛[31mred␀␇ \\u202egnp.exe \\u200b \\xff \\x9b2J"
    assert visible("a\tb\nc ü 😀") == "a\tb\nc ü 😀"


def test_decode_text_escapes_other_bytes() -> None:
    assert decode_text(b"a\xff") == "a\\xff"


def test_hex_lines_have_sixteen_bytes_each() -> None:
    lines = hex_lines(bytes(range(0x41, 0x53)))
    assert [it.address for it in lines] == ["00000000", "00000010"]
    assert lines[0].hexadecimal == "41 42 43 44 45 46 47 48  49 4a 4b 4c 4d 4e 4f 50"
    assert lines[0].characters == "ABCDEFGHIJKLMNOP"
    assert lines[1].characters == "QR"
