"""The archive process of a broker: started with the first request, restarted after its death.

All calls block, so they come from threads. Each uses a channel of its own (`archive/channel.py`);
idle ones are kept. A read whose answer does not come in time costs the channel. A change costs the
process: it could still be made, after another one that was begun since.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from uuid import UUID

from millstream.archive.channel import Message, receive, send
from millstream.archive.child import CORRUPT, FENCED, file_fields
from millstream.archive.deleting import Mark
from millstream.archive.manifest import (
    ArchivedFile,
    ArchiveError,
    ArchiveFenced,
    Manifest,
    decode_manifest,
    partition_path,
)
from millstream.config.excised import ExcisedOffsets
from millstream.errors import CorruptBatch

logger = logging.getLogger("millstream.archive")

# An upload of a segment to a slow bucket takes long; a consumer does not wait that long.
WRITE_SECONDS_MAX = 3600.0
READ_SECONDS_MAX = 20.0
CHANNELS_KEPT = 8
STOP_SECONDS_MAX = 10.0


class _TooSlow(ArchiveError):
    """The answer did not come in time."""


class ArchiveProcess:
    """See the module."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._idle: list[socket.socket] = []
        self._is_stopped = False

    @property
    def pid(self) -> int | None:
        """Of the process that runs now."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def stop(self) -> None:
        """End the process, also in the middle of an upload."""
        with self._lock:
            self._is_stopped = True
            process = self._process
            self._close()
        if process is not None:
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # Requests

    def load(self, topic: str, topic_id: UUID, partition: int) -> Manifest | None:
        """The manifest that counts. Raises `ArchiveError`, as all requests do."""
        directory = partition_path(topic, topic_id, partition)
        answer = self._call({"do": "load", "directory": directory}, WRITE_SECONDS_MAX)
        return _manifest_of(answer)

    def write(
        self,
        manifest: Manifest,
        first_offset: int,
        end_offset: int,
        aborted: Sequence[tuple[int, int, int]],
        segments: Sequence[tuple[int, int]],
        *,
        archived_ms: int,
        last_epoch: int,
        schema: str = "",
        key_schema: str = "",
        registry: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Archive these segments, each an open file and its size. `last_epoch` is that of the last
        offset; `schema` and `key_schema` are the topic's millstream.archive.schema and
        millstream.archive.key.schema, which may need the registry.
        Returns the new manifest; also raises `CorruptBatch`."""
        fields = {
            "do": "write",
            "manifest": manifest.encode().decode(),
            "first_offset": first_offset,
            "end_offset": end_offset,
            "aborted": [list(each) for each in aborted],
            "sizes": [size for _, size in segments],
            "archived_ms": archived_ms,
            "last_epoch": last_epoch,
            "schema": schema,
            "key_schema": key_schema,
            "registry": dict(registry or {}),
        }
        written = _manifest_of(self._change(fields, [fd for fd, _ in segments]))
        assert written is not None
        return written

    def excise(self, manifest: Manifest, names: Sequence[str], offsets: ExcisedOffsets) -> Manifest:
        """Remove the records at these offsets from these files. Returns the new manifest."""
        fields = {
            "do": "excise",
            "manifest": manifest.encode().decode(),
            "names": list(names),
            "offsets": offsets.items(manifest.partition),
        }
        excised = _manifest_of(self._change(fields))
        assert excised is not None
        return excised

    def save(self, manifest: Manifest, dropped: Sequence[str]) -> None:
        fields = {"do": "save", "manifest": manifest.encode().decode(), "dropped": list(dropped)}
        self._change(fields)

    def clean_up(self, manifest: Manifest) -> list[str]:
        fields = {"do": "clean_up", "manifest": manifest.encode().decode()}
        names: list[str] = self._change(fields).fields["names"]
        return names

    def empty(
        self, topic: str, topic_id: UUID, partition: int, leader_epoch: int
    ) -> Manifest | None:
        """Delete what is archived of a partition. Returns the manifest that is left; None if there
        was none."""
        directory = partition_path(topic, topic_id, partition)
        fields = {"do": "empty", "directory": directory, "leader_epoch": leader_epoch}
        return _manifest_of(self._change(fields))

    # Deleted topics

    def mark(self, mark: Mark) -> None:
        """Before the topic is deleted."""
        fields = {"topic": mark.topic, "topic_id": str(mark.topic_id), "marked_ms": mark.marked_ms}
        self._call({"do": "mark", **fields}, READ_SECONDS_MAX)

    def unmark(self, topic_id: UUID) -> None:
        self._call({"do": "unmark", "topic_id": str(topic_id)}, READ_SECONDS_MAX)

    def marked(self) -> list[Mark]:
        marks = self._call({"do": "marked"}, READ_SECONDS_MAX).fields["marks"]
        return [Mark(it[0], UUID(it[1]), it[2]) for it in marks]

    def delete_topic(self, topic: str, topic_id: UUID) -> None:
        """All that is archived of it."""
        self._change({"do": "delete_topic", "topic": topic, "topic_id": str(topic_id)})

    # Reading

    def read(
        self, manifest: Manifest, file: ArchivedFile, offset: int, max_bytes: int
    ) -> tuple[bytes | bytearray, list[tuple[int, int, int]]]:
        """Whole batches, and the aborted transactions in them."""
        fields = {**_place(manifest, file), "do": "read", "offset": offset, "max_bytes": max_bytes}
        answer = self._call(fields, READ_SECONDS_MAX)
        return answer.payload, [(it[0], it[1], it[2]) for it in answer.fields["aborted"]]

    def find(
        self, manifest: Manifest, file: ArchivedFile, timestamp: int, first_offset: int
    ) -> tuple[int, int, int] | None:
        """(offset, timestamp, leader epoch) of the first record at or after the timestamp."""
        fields = {
            **_place(manifest, file),
            "do": "find",
            "timestamp": timestamp,
            "first_offset": first_offset,
        }
        found = self._call(fields, READ_SECONDS_MAX).fields["found"]
        return None if found is None else (found[0], found[1], found[2])

    # Channels

    def _change(self, fields: dict[str, Any], files: Sequence[int] = ()) -> Message:
        try:
            return self._call(fields, WRITE_SECONDS_MAX, files)
        except _TooSlow:
            with self._lock:
                if self._process is not None:
                    self._process.kill()
                    with suppress(subprocess.TimeoutExpired):
                        self._process.wait(STOP_SECONDS_MAX)
            raise

    def _call(self, fields: dict[str, Any], seconds: float, files: Sequence[int] = ()) -> Message:
        channel = self._take_channel()
        try:
            channel.settimeout(seconds)
            send(channel, Message(fields, b"", files))
            answer = receive(channel)
        except TimeoutError:
            channel.close()
            raise _TooSlow(f"the archive did not answer within {seconds:g} s") from None
        except OSError as error:
            channel.close()
            raise ArchiveError(f"the archive process has ended: {error}") from None
        if answer is None:
            channel.close()
            raise ArchiveError("the archive process has ended")
        self._keep_channel(channel)
        problem = answer.fields.get("error")
        if problem is None:
            return answer
        kind = answer.fields["kind"]
        if kind == CORRUPT:
            raise CorruptBatch(problem)
        raise ArchiveFenced(problem) if kind == FENCED else ArchiveError(problem)

    def _take_channel(self) -> socket.socket:
        with self._lock:
            if self._is_stopped:
                raise ArchiveError("the broker is stopping")
            if self._process is None or self._process.poll() is not None:
                self._start()
            if self._idle:
                return self._idle.pop()
            here, there = socket.socketpair()
            assert self._control is not None
            try:
                socket.send_fds(self._control, [b"c"], [there.fileno()])
            except OSError as error:
                here.close()
                raise ArchiveError(f"the archive process has ended: {error}") from None
            finally:
                there.close()
            return here

    def _keep_channel(self, channel: socket.socket) -> None:
        with self._lock:
            if self._is_stopped or len(self._idle) >= CHANNELS_KEPT:
                channel.close()
            else:
                self._idle.append(channel)

    def _start(self) -> None:
        if self._process is not None:
            logger.warning(
                "the archive process has ended with status %s: starting another one",
                self._process.returncode,
            )
        self._close()
        control, inherited = socket.socketpair()
        command = [sys.executable, "-m", "millstream.archive.child"]
        with inherited:
            fd = inherited.fileno()
            self._process = subprocess.Popen(
                [*command, str(fd), self._path], pass_fds=[fd], stdin=subprocess.DEVNULL
            )
        self._control = control

    def _close(self) -> None:
        for channel in self._idle:
            channel.close()
        self._idle.clear()
        if self._control is not None:
            self._control.close()
            self._control = None


def _manifest_of(answer: Message) -> Manifest | None:
    text = answer.fields["manifest"]
    return None if text is None else decode_manifest(text.encode(), "the archive's manifest")


def _place(manifest: Manifest, file: ArchivedFile) -> dict[str, Any]:
    directory = partition_path(manifest.topic, manifest.topic_id, manifest.partition)
    return {"directory": directory, "file": file_fields(file)}
