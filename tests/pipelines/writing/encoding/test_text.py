"""Strings that are valid UTF-8 pass as they are; of others, what is not is replaced."""

from __future__ import annotations

import pyarrow as pa
import pytest

from millstream.pipelines.writing.encoding.text import valid_utf8

BAD = [b"a\xff", b"\xed\xa0\x80", b"ok", None, b""]


def strings(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """As Spark hands them over, unchecked."""
    raw = pa.large_binary() if kind == pa.large_string() else pa.binary()
    return pa.array(values, raw).view(kind)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_valid_strings_are_not_copied(kind: pa.DataType) -> None:
    given = pa.array(["", "grün", None, "\U0001f980"], kind)
    assert valid_utf8(given) is given


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_what_is_no_utf8_is_replaced_and_the_rest_stays(kind: pa.DataType) -> None:
    found = valid_utf8(strings(BAD, kind))
    assert found.type == kind
    assert found.to_pylist() == [
        "a\N{REPLACEMENT CHARACTER}",
        "\N{REPLACEMENT CHARACTER}" * 3,
        "ok",
        None,
        "",
    ]


def test_only_the_rows_of_a_slice_count() -> None:
    given = strings(BAD, pa.string()).slice(2)
    assert valid_utf8(given).to_pylist() == ["ok", None, ""]
