"""Records as files: JSON lines, CSV and Parquet.

A line of JSON is an object as `millstream consume --json` prints it, so that `millstream produce
--envelope` reads it. Keys, values and headers that are no UTF-8 are also there in base64, which is
what is read then.

Spreadsheets run a cell of CSV that begins with `=`, `+`, `-` or `@` as a formula: such cells get an
apostrophe in front. Control characters are replaced by symbols.

Parquet is written by a child process, which imports Arrow: it would cost the broker's process, in
which a console may run, 40 MB.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import IO, Any

from millstream.admin.reading import Header, ReadRecord
from millstream.admin.values import decode_text, visible
from millstream.errors import MillstreamError

CHUNK_BYTES = 256 * 1024
EXIT_REFUSED = 3  # the exit code of the child if a broker refused it
WAIT_SECONDS = 0.5  # for the child, before the caller is asked whether to go on
CSV_COLUMNS = ("topic", "partition", "offset", "time", "state", "key", "value", "headers")
PARQUET_CHILD = "millstream.admin.parquet_child"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


class ExportFailed(MillstreamError):
    """The file cannot be made."""


def json_lines(topic: str, records: Iterable[ReadRecord]) -> Iterator[bytes]:
    """Lines, in chunks."""
    return _chunks(json_line(topic, it) for it in records)


def json_line(topic: str, record: ReadRecord) -> bytes:
    fields: dict[str, Any] = {
        "topic": topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "state": record.state.value,
        **_text("key", record.key),
        **_text("value", record.value),
        "headers": [
            [_name(it.name), None if it.value is None else decode_text(it.value)]
            for it in record.headers
        ],
        **_packed_headers(record.headers),
    }
    return json.dumps(fields, ensure_ascii=False).encode() + b"\n"


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    if _is_text(data):
        return {name: data.decode()}
    return {name: decode_text(data), f"{name}_base64": _packed(data)}


def _packed_headers(headers: Sequence[Header]) -> dict[str, list[list[str | None]]]:
    """All of them in base64, names too, if the text of one is not all of it."""
    pairs = [(it.name.encode("utf-8", "surrogateescape"), it.value) for it in headers]
    if all(_is_text(name) and _is_text(value or b"") for name, value in pairs):
        return {}
    return {"headers_base64": [[_packed(name), _packed(value)] for name, value in pairs]}


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _packed(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _name(name: str) -> str:
    """A header's name; bytes that are no UTF-8 as escapes."""
    return decode_text(name.encode("utf-8", "surrogateescape"))


def csv_lines(topic: str, records: Iterable[ReadRecord]) -> Iterator[bytes]:
    """A line of names, then one for each record, in chunks."""
    return _chunks(_csv(topic, records))


def _csv(topic: str, records: Iterable[ReadRecord]) -> Iterator[bytes]:
    import csv  # here: the parent of a process that exports does without

    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(CSV_COLUMNS)
    for record in records:
        yield _taken(buffer)
        headers = [
            [_name(it.name), None if it.value is None else decode_text(it.value)]
            for it in record.headers
        ]
        cells = (
            topic,
            record.partition,
            record.offset,
            moment(record.timestamp_ms),
            record.state.value,
            "" if record.key is None else decode_text(record.key),
            "" if record.value is None else decode_text(record.value),
            json.dumps(headers, ensure_ascii=False) if headers else "",
        )
        writer.writerow([safe_cell(it) if isinstance(it, str) else it for it in cells])
    yield _taken(buffer)


def _taken(buffer: io.StringIO) -> bytes:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return text.encode()


def safe_cell(text: str) -> str:
    """Text that no spreadsheet runs as a formula, and no terminal as a command."""
    return visible(f"'{text}" if text.startswith(_FORMULA) else text)


def moment(timestamp_ms: int) -> str:
    """ISO 8601 in UTC; the number if there is no such time."""
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    waiting: list[bytes] = []
    size = 0
    for line in lines:
        waiting.append(line)
        size += len(line)
        if size >= CHUNK_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def can_write_parquet() -> bool:
    return find_spec("pyarrow") is not None


def parquet(topic: str, records: Iterable[ReadRecord]) -> Iterator[bytes]:
    """A file of Parquet, in chunks; the whole is made before the first. While it is made, empty
    chunks come, so that the caller can do something else, or stop. Raises `ExportFailed`."""
    if not can_write_parquet():
        raise ExportFailed("Parquet needs Arrow: pip install 'millstream[query]'")
    with tempfile.TemporaryFile() as file:
        yield from _write_parquet(topic, records, file)
        file.seek(0)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _write_parquet(topic: str, records: Iterable[ReadRecord], file: IO[bytes]) -> Iterator[bytes]:
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", PARQUET_CHILD],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=errors,
        )
        assert child.stdin is not None
        try:
            written = 0
            for record in records:
                written += child.stdin.write(_parquet_line(topic, record))
                if written >= CHUNK_BYTES:
                    written = 0
                    yield b""
            child.stdin.close()
            while child.poll() is None:
                yield b""
                with suppress(subprocess.TimeoutExpired):
                    child.wait(WAIT_SECONDS)
        except BrokenPipeError:
            child.wait()
        finally:
            child.kill()
            child.wait()
        if child.returncode:
            errors.seek(0)
            lines = errors.read().decode("utf-8", "replace").strip().splitlines()
            raise ExportFailed(f"Parquet cannot be written: {lines[-1] if lines else 'killed'}")


def _parquet_line(topic: str, record: ReadRecord) -> bytes:
    row = [
        topic,
        record.partition,
        record.offset,
        record.timestamp_ms,
        record.state.value,
        _packed(record.key),
        _packed(record.value),
        [[_name(it.name), _packed(it.value)] for it in record.headers],
    ]
    return json.dumps(row).encode() + b"\n"
