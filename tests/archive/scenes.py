"""Batches of all kinds, and archives made of them."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from uuid import UUID

from millstream.archive.manifest import Manifest
from millstream.archive.places import Place
from millstream.archive.rows import Aborted
from millstream.archive.service import ArchiveService, Source
from millstream.records.batch import iterate_headers
from millstream.records.compression import Compression
from millstream.records.record import (
    ControlType,
    Header,
    Record,
    decode_batch,
    encode_batch,
    encode_end_transaction,
)
from millstream.testing.filesystem import MemoryFileSystem

TOPIC_ID = UUID("0ace1f2e-1111-4222-8333-444455556666")
START_MS = 1_700_000_000_000


def record(offset: int, random: Random | None = None) -> Record:
    random = random or Random(offset)
    headers: tuple[Header, ...] = tuple(
        (f"h{n}", random.choice([None, b"", b"x" * n])) for n in range(random.randrange(3))
    )
    return Record(
        offset,
        START_MS + 10 * offset,
        random.choice([None, b"", b"key%d" % (offset % 7)]),
        random.choice([None, b"", b"value %d" % offset, random.randbytes(40)]),
        headers,
    )


def batches(first: int, end: int, *, per_batch: int = 10, **options: object) -> bytes:
    """Plain batches of the offsets [first, end)."""
    return b"".join(
        encode_batch(
            [record(offset) for offset in range(start, min(start + per_batch, end))],
            leader_epoch=2,
            **options,  # type: ignore[arg-type]
        )
        for start in range(first, end, per_batch)
    )


def transaction(first: int, producer_id: int, *, committed: bool, count: int = 4) -> bytes:
    """A batch and the marker that ends its transaction, at `first + count`."""
    data = encode_batch(
        [record(first + n) for n in range(count)],
        producer_id=producer_id,
        producer_epoch=1,
        base_sequence=5,
        is_transactional=True,
        leader_epoch=2,
    )
    marker = encode_end_transaction(
        ControlType.COMMIT if committed else ControlType.ABORT,
        offset=first + count,
        timestamp=START_MS + 10 * (first + count),
        producer_id=producer_id,
        producer_epoch=1,
        coordinator_epoch=7,
    )
    return data + marker


def all_kinds() -> tuple[bytes, int, tuple[Aborted, ...]]:
    """Batches of every kind, the offset after them, and the aborted transactions."""
    parts = [batches(0, 20)]
    parts += [
        batches(20 + 10 * n, 30 + 10 * n, compression=kind) for n, kind in enumerate(Compression)
    ]
    end = 20 + 10 * len(Compression)
    parts.append(transaction(end, 70, committed=True))
    parts.append(transaction(end + 5, 71, committed=False))
    aborted = (Aborted(71, end + 5, end + 9),)
    parts.append(batches(end + 10, end + 20, is_log_append_time=True))
    # As compaction leaves them: gaps between records, after batches, and an empty batch.
    gaps = [record(end + 22), record(end + 25)]
    parts.append(encode_batch(gaps, base_offset=end + 20, leader_epoch=3))
    parts.append(
        batches(end + 40, end + 50, producer_id=9, producer_epoch=3, base_sequence=2**31 - 4)
    )
    return b"".join(parts), end + 50, aborted


def decoded(data: bytes | bytearray | memoryview) -> list[tuple[object, ...]]:
    """All that a consumer can see of batches, and what other brokers need of them."""
    seen: list[tuple[object, ...]] = []
    for position, header in iterate_headers(memoryview(data)):
        visible = header._replace(length=0, crc=0, attributes=header.attributes & ~7)
        seen.append((visible, decode_batch(data, position)))
    return seen


def new_manifest(*, leader_epoch: int = 2, partition: int = 0) -> Manifest:
    return Manifest("orders", TOPIC_ID, partition, leader_epoch, 0)


def archived(place: Place, ranges: Iterable[tuple[int, int]] = ((0, 100), (100, 250))) -> Manifest:
    """An archive of plain batches."""
    service, manifest = ArchiveService(place), new_manifest()
    for first, end in ranges:
        source = Source(first, [batches(first, end)])
        manifest = service.write(manifest, end, (), source)
    return manifest


class PowerCut(BaseException):
    """Nothing that runs survives it, so nothing may handle it."""


class CuttingFileSystem(MemoryFileSystem):
    """Raises `PowerCut` at an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.operations_left: int | None = None

    def _note(self, name: str, path: str, position: int = 0, size: int = 0) -> None:
        if self.operations_left is not None:
            if self.operations_left == 0:
                raise PowerCut
            self.operations_left -= 1
        super()._note(name, path, position, size)
