"""Files of records: that they can be read again, and that no spreadsheet runs them."""

from __future__ import annotations

import base64
import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.admin import exporting
from millstream.admin.exporting import (
    ExportFailed,
    csv_lines,
    json_line,
    json_lines,
    moment,
    parquet,
    safe_cell,
)
from millstream.admin.outgoing import ENCODERS, BadRecord, Outgoing, parse_envelope
from millstream.admin.reading import Header, ReadRecord, State


def record(offset: int, key: bytes | None, value: bytes | None, *headers: Any) -> ReadRecord:
    return ReadRecord(
        partition=1,
        offset=offset,
        timestamp_ms=1_763_415_243_123,
        is_append_time=False,
        key=key,
        value=value,
        key_bytes=len(key or b""),
        value_bytes=len(value or b""),
        headers=tuple(Header(name, it, len(it or b"")) for name, it in headers),
        state=State.COMMITTED,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        compression="none",
    )


RECORDS = [
    record(0, b"ada", '{"a": "ü"}'.encode(), ("h", b"1"), ("n", None)),
    record(1, None, None),
    record(2, b"=1+1", b"@SUM(A1)", ("=h", b"=2")),
    record(3, b"\xff", b"\x00\xff", ("\udcff", b"x")),
    record(4, b"k", b'two\nlines, "quoted"'),
]


def test_json_lines_are_envelopes_that_can_be_produced() -> None:
    lines = b"".join(json_lines("t", RECORDS)).decode().splitlines()
    found = [json.loads(it) for it in lines]
    assert [it["offset"] for it in found] == [0, 1, 2, 3, 4]
    assert base64.b64decode(found[3]["value_base64"]) == b"\x00\xff"
    again = parse_envelope(lines[0], Outgoing(None), ENCODERS["text"])
    assert (again.key, again.value) == (b"ada", '{"a": "ü"}'.encode())
    assert again.headers == [("h", b"1"), ("n", None)]
    assert again.timestamp_ms == 1_763_415_243_123


@given(
    st.none() | st.binary(max_size=9),
    st.none() | st.binary(max_size=9),
    st.lists(st.tuples(st.binary(max_size=4), st.none() | st.binary(max_size=4)), max_size=3),
)
def test_json_lines_come_back_as_they_were(
    key: bytes | None, value: bytes | None, headers: list[tuple[bytes, bytes | None]]
) -> None:
    named = [(name.decode("utf-8", "surrogateescape"), it) for name, it in headers]
    line = json_line("t", record(0, key, value, *named)).decode()
    again = parse_envelope(line, Outgoing(None), ENCODERS["text"])
    assert (again.key, again.value, again.headers) == (key, value, named)


def test_records_that_were_not_committed_do_not_come_back() -> None:
    line = json_line("t", replace(record(0, b"k", b"v"), state=State.ABORTED)).decode()
    with pytest.raises(BadRecord, match="not committed, its state is aborted"):
        parse_envelope(line, Outgoing(None), ENCODERS["text"])


def test_csv_has_no_formulas() -> None:
    text = b"".join(csv_lines("=t", RECORDS)).decode()
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0][:4] == ["topic", "partition", "offset", "time"]
    assert len(rows) == 6
    assert rows[3][0] == "'=t"
    assert rows[3][5:7] == ["'=1+1", "'@SUM(A1)"]
    assert rows[5][6] == 'two\nlines, "quoted"'
    for cell in (cell for row in rows for cell in row):
        assert not cell.startswith(("=", "+", "@", "-", "\t", "\r"))


@pytest.mark.parametrize("text", ["=x", "+x", "-x", "@x", "\tx"])
def test_cells_that_would_run_get_an_apostrophe(text: str) -> None:
    assert safe_cell(text) == "'" + text


def test_cells_have_no_commands_for_terminals() -> None:
    assert safe_cell("\rx\x1b[2J") == "'x␛[2J"


def test_moments_are_iso_8601() -> None:
    assert moment(1_763_415_243_123) == "2025-11-17T21:34:03.123Z"
    assert moment(2**62) == str(2**62)


def test_chunks_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "CHUNK_BYTES", 100)
    chunks = list(json_lines("t", RECORDS * 10))
    assert len(chunks) > 10
    assert len(b"".join(chunks).splitlines()) == 50


def test_parquet_is_read_by_arrow() -> None:
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(b"".join(parquet("t", RECORDS))))
    rows = table.to_pylist()
    assert [it["offset"] for it in rows] == [0, 1, 2, 3, 4]
    assert (rows[3]["key"], rows[3]["value"]) == (b"\xff", b"\x00\xff")
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert rows[1]["value"] is None
    assert rows[0]["timestamp"].isoformat() == "2025-11-17T21:34:03.123000+00:00"


def test_parquet_tells_why_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "PARQUET_CHILD", "millstream.no_such_module")
    with pytest.raises(ExportFailed, match="no_such_module"):
        list(parquet("t", RECORDS))
    monkeypatch.setattr(exporting, "find_spec", lambda _: None)
    with pytest.raises(ExportFailed, match="pip install"):
        list(parquet("t", RECORDS))
