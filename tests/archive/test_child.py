"""The archive process serves its broker, and ends with it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.archive.channel import Message, receive, send
from millstream.archive.child import _extension, file_fields, read_segments
from millstream.archive.manifest import ArchiveError, decode_manifest
from millstream.archive.service import directory_of
from millstream.errors import CorruptBatch
from tests.archive.scenes import batches, new_manifest


@contextmanager
def child(path: str) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket, socket.socket]]:
    """The process, its control channel, and an open channel."""
    control, inherited = socket.socketpair()
    command = [sys.executable, "-m", "millstream.archive.child", str(inherited.fileno()), path]
    with subprocess.Popen(command, pass_fds=[inherited.fileno()]) as process:
        inherited.close()
        here, there = socket.socketpair()
        socket.send_fds(control, [b"c"], [there.fileno()])
        there.close()
        try:
            with control, here:
                yield process, control, here
        finally:
            process.kill()


def call(
    channel: socket.socket, fields: dict[str, object], files: list[int] | None = None
) -> Message:
    send(channel, Message(fields, b"", files or []))
    answer = receive(channel)
    assert answer is not None
    return answer


def test_process_writes_and_reads_until_the_broker_is_gone(tmp_path: Path) -> None:
    segment = tmp_path / "segment"
    segment.write_bytes(batches(0, 100))
    manifest = new_manifest()
    directory = directory_of(manifest)
    with child(str(tmp_path / "archive")) as (process, control, channel):
        assert call(channel, {"do": "load", "directory": directory}).fields == {"manifest": None}
        with segment.open("rb") as file:
            segment.unlink()  # as retention may
            written = call(
                channel,
                {
                    "do": "write",
                    "manifest": manifest.encode().decode(),
                    "sizes": [os.fstat(file.fileno()).st_size],
                    "first_offset": 20,
                    "end_offset": 100,
                    "aborted": [],
                    "archived_ms": 0,
                    "last_epoch": 2,
                    "schema": "json: id bigint",
                    "key_schema": "string",
                    "registry": {},
                },
                [file.fileno()],
            )
        after = decode_manifest(written.fields["manifest"].encode(), "answer")
        assert (after.start_offset, after.end_offset) == (20, 100)
        assert after.files[0].columns == "`id` bigint"
        assert after.files[0].key_columns == "`value` string"
        read = {"do": "read", "directory": directory, "file": file_fields(after.files[0])}
        found = call(channel, {**read, "offset": 20, "max_bytes": 10**6})
        assert found.payload == batches(20, 100)
        find = {**read, "do": "find", "timestamp": 0, "first_offset": 31}
        assert call(channel, find).fields["found"][0] == 31
        later = after.starting_at(50)
        save = {"do": "save", "manifest": later.encode().decode(), "dropped": []}
        assert call(channel, save).fields == {}
        assert call(channel, {"do": "clean_up", "manifest": save["manifest"]}).fields == {
            "names": []
        }
        control.close()
        assert process.wait(60) == 0


def test_errors_are_answers(tmp_path: Path) -> None:
    (tmp_path / "archive").write_text("a file")
    with child(str(tmp_path / "archive")) as (_, _, channel):
        save = {"do": "save", "manifest": new_manifest().encode().decode(), "dropped": []}
        answer = call(channel, save).fields
        assert answer["kind"] == "failed"
        assert "archive" in answer["error"]
        assert "no_such" in call(channel, {"do": "no_such"}).fields["error"]


def test_columns_that_are_not_known_name_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _extension("orders", "", "", {}) is None
    with pytest.raises(ArchiveError, match=r"registry\.url is not set\. Without millstream"):
        _extension("orders", "avro", "", {})
    monkeypatch.setattr("millstream.archive.child.DECODERS", "millstream.no_such_module")
    with pytest.raises(ArchiveError, match=r"pip install 'millstream\[query\]'"):
        _extension("orders", "json: id bigint", "", {})


def test_segments_are_read_in_whole_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batches(0, 100)
    (tmp_path / "one").write_bytes(data)
    (tmp_path / "two").write_bytes(batches(100, 120) + b"the active end")
    for size in (10**6, 1000, 70):
        monkeypatch.setattr("millstream.archive.child.CHUNK_BYTES", size)
        with (tmp_path / "one").open("rb") as one, (tmp_path / "two").open("rb") as two:
            files = [one.fileno(), two.fileno()]
            sizes = [len(data), len(batches(100, 120))]
            assert b"".join(read_segments(files, sizes, 0)) == batches(0, 120)
            assert b"".join(read_segments(files, sizes, 50)) == batches(50, 120)
            with pytest.raises(CorruptBatch):
                list(read_segments(files, [len(data) - 5, 10], 0))
            with pytest.raises(CorruptBatch):
                list(read_segments(files[:1], [len(data) + 500], 0))
