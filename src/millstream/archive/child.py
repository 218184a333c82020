"""The archive process: serves one broker over socket pairs, until the broker is gone.

The broker starts `python -m millstream.archive.child FD PATH`. Over the socket FD it sends one end
of a socket pair for each channel that it opens; a thread serves each. When FD ends, because the
broker has stopped or was killed, the process ends at once, wherever it is: the manifest is written
last, so half an upload does no harm.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any
from uuid import UUID

from millstream.archive.channel import Message, receive, send
from millstream.archive.manifest import (
    ArchivedFile,
    ArchiveError,
    ArchiveFenced,
    Manifest,
    decode_manifest,
)
from millstream.errors import CorruptBatch, MillstreamError
from millstream.records.batch import HEADER_SIZE_BYTES, parse_header

CHUNK_BYTES = 8 * 1024 * 1024
NICENESS = 5  # the broker goes first

# By its name: queries, whose decoders are used for typed columns, are built upon archives.
DECODERS = "millstream.query.archiving"

FENCED = "fenced"
CORRUPT = "corrupt"
FAILED = "failed"


def main(arguments: Sequence[str]) -> None:
    control = socket.socket(fileno=int(arguments[0]))
    os.nice(NICENESS)
    server = _Server(arguments[1])
    while True:
        try:
            _, files, _, _ = socket.recv_fds(control, 1, 1)
        except OSError:
            files = []
        if not files:
            os._exit(0)  # also if a thread is uploading
        channel = socket.socket(fileno=files[0])
        threading.Thread(target=server.serve, args=(channel,), daemon=True).start()


class _Server:
    """Serves channels. pyarrow is imported with the first request, not while the broker waits for
    the process to start."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._service: Any = None

    def serve(self, channel: socket.socket) -> None:
        with channel:
            while True:
                try:
                    request = receive(channel)
                    if request is None:
                        return
                    send(channel, self.answer(request))
                except OSError:
                    return  # the broker has given up waiting

    def answer(self, request: Message) -> Message:
        try:
            action: Callable[[Message], Message] = getattr(self, f"_do_{request.fields['do']}")
            return action(request)
        except ArchiveFenced as error:
            return Message({"error": str(error), "kind": FENCED})
        except CorruptBatch as error:
            return Message({"error": str(error), "kind": CORRUPT})
        except ArchiveError as error:
            return Message({"error": str(error), "kind": FAILED})
        except Exception as error:  # noqa: BLE001 - a defect fails one request, not the archive
            return Message({"error": repr(error), "kind": FAILED})
        finally:
            for fd in request.files:
                os.close(fd)

    @property
    def service(self) -> Any:
        with self._lock:
            if self._service is None:
                from millstream.archive.places import open_place
                from millstream.archive.service import ArchiveService

                self._service = ArchiveService(open_place(self._path))
            return self._service

    def _do_load(self, request: Message) -> Message:
        manifest = self.service.load(request.fields["directory"])
        return _manifest(manifest)

    def _do_write(self, request: Message) -> Message:
        from millstream.archive.rows import Aborted
        from millstream.archive.service import Source

        fields = request.fields
        manifest = _decode(fields["manifest"])
        chunks = read_segments(request.files, fields["sizes"], fields["first_offset"])
        aborted = tuple(Aborted(*each) for each in fields["aborted"])
        source = Source(
            fields["first_offset"],
            chunks,
            fields["archived_ms"],
            fields["last_epoch"],
            _extension(manifest.topic, fields["schema"], fields["key_schema"], fields["registry"]),
        )
        return _manifest(self.service.write(manifest, fields["end_offset"], aborted, source))

    def _do_excise(self, request: Message) -> Message:
        from millstream.config.excised import parse_excised

        fields = request.fields
        manifest = _decode(fields["manifest"])
        offsets = parse_excised(fields["offsets"])[manifest.partition]
        return _manifest(self.service.excise(manifest, fields["names"], offsets))

    def _do_empty(self, request: Message) -> Message:
        fields = request.fields
        return _manifest(self.service.empty(fields["directory"], fields["leader_epoch"]))

    def _do_mark(self, request: Message) -> Message:
        from millstream.archive.deleting import Mark, mark_topic

        fields = request.fields
        mark = Mark(fields["topic"], UUID(fields["topic_id"]), fields["marked_ms"])
        mark_topic(self.service.place, mark)
        return Message({})

    def _do_unmark(self, request: Message) -> Message:
        from millstream.archive.deleting import unmark_topic

        unmark_topic(self.service.place, UUID(request.fields["topic_id"]))
        return Message({})

    def _do_marked(self, request: Message) -> Message:
        from millstream.archive.deleting import marked_topics

        marks = marked_topics(self.service.place)
        return Message({"marks": [(it.topic, str(it.topic_id), it.marked_ms) for it in marks]})

    def _do_delete_topic(self, request: Message) -> Message:
        self.service.delete_topic(request.fields["topic"], UUID(request.fields["topic_id"]))
        return Message({})

    def _do_save(self, request: Message) -> Message:
        self.service.save(_decode(request.fields["manifest"]), request.fields["dropped"])
        return Message({})

    def _do_clean_up(self, request: Message) -> Message:
        return Message({"names": self.service.clean_up(_decode(request.fields["manifest"]))})

    def _do_read(self, request: Message) -> Message:
        fields = request.fields
        entry = ArchivedFile(**fields["file"])
        found = self.service.read(fields["directory"], entry, fields["offset"], fields["max_bytes"])
        return Message({"aborted": found.aborted}, found.records)

    def _do_find(self, request: Message) -> Message:
        fields = request.fields
        found = self.service.find(
            fields["directory"],
            ArchivedFile(**fields["file"]),
            fields["timestamp"],
            fields["first_offset"],
        )
        return Message({"found": found})


def _manifest(manifest: Manifest | None) -> Message:
    return Message({"manifest": None if manifest is None else manifest.encode().decode()})


def _decode(text: str) -> Manifest:
    return decode_manifest(text.encode(), "the broker's manifest")


def _extension(topic: str, schema: str, key_schema: str, registry: dict[str, str]) -> Any:
    """The typed columns of a topic that has a schema. Raises `ArchiveError`."""
    if not schema and not key_schema:
        return None
    from millstream.archive.typed import DecodedColumns

    try:
        decoders = importlib.import_module(DECODERS)
        of_values = decoders.value_decoder(topic, schema, registry) if schema else None
        of_keys = decoders.key_decoder(topic, key_schema, registry) if key_schema else None
    except ModuleNotFoundError as error:
        raise ArchiveError(
            f"millstream.archive.schema needs {error.name}: pip install 'millstream[query]'"
        ) from None
    except MillstreamError as error:
        raise ArchiveError(
            f"the columns of {topic} are not known: {error}. Without millstream.archive.schema "
            "and millstream.archive.key.schema, it is archived without them"
        ) from error
    return None if of_values is of_keys is None else DecodedColumns(of_values, of_keys)


def file_fields(file: ArchivedFile) -> dict[str, Any]:
    """For a request."""
    return asdict(file)


def read_segments(
    files: Sequence[int], sizes: Sequence[int], first_offset: int
) -> Iterator[bytes | memoryview]:
    """The batches of segments from that offset on, in chunks of whole batches. Raises
    `CorruptBatch` if a file ends inside one."""
    for fd, size in zip(files, sizes, strict=True):
        position, want = 0, CHUNK_BYTES
        while position < size:
            chunk = os.pread(fd, min(want, size - position), position)
            if not chunk:
                raise CorruptBatch(f"a segment of {size} bytes ends at {position}")
            whole, skipped = _whole_batches(chunk, first_offset)
            if not whole:
                want = parse_header(chunk).size_bytes if len(chunk) >= HEADER_SIZE_BYTES else 0
                if want <= len(chunk) or want > size - position:
                    raise CorruptBatch(f"no whole batch at position {position} of a segment")
                continue
            if whole > skipped:
                yield memoryview(chunk)[skipped:whole]
            position, want = position + whole, CHUNK_BYTES


def _whole_batches(chunk: bytes, first_offset: int) -> tuple[int, int]:
    """Where the last whole batch ends, and where the first with that offset or a later one
    begins."""
    position = skipped = 0
    while position + HEADER_SIZE_BYTES <= len(chunk):
        header = parse_header(chunk, position)
        end = position + header.size_bytes
        if end > len(chunk):
            break
        if header.next_offset <= first_offset:
            skipped = end
        position = end
    return position, skipped


if __name__ == "__main__":
    main(sys.argv[1:])
