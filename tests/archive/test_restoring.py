"""A restored log is the log that was archived."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.archive.manifest import ArchiveError
from millstream.archive.places import open_place
from millstream.archive.reading import open_archive
from millstream.archive.restoring import restore_topic
from millstream.archive.service import ArchiveService, Source
from millstream.broker.embedded import Broker
from tests.archive.scenes import all_kinds, archived, batches, decoded, new_manifest
from tests.broker.archiving.scenes import consume


def test_segments_come_back_byte_for_byte(tmp_path: Path) -> None:
    archived(open_place(str(tmp_path / "archive")))
    topic = open_archive(str(tmp_path / "archive")).topic("orders")
    (restored,) = restore_topic(topic, tmp_path / "data")
    assert (restored.records, restored.segments) == (250, 2)
    log = tmp_path / "data" / "orders-0"
    assert (log / f"{0:020d}.log").read_bytes() == batches(0, 100)
    assert (log / f"{100:020d}.log").read_bytes() == batches(100, 250)
    with pytest.raises(ArchiveError, match="exists: restore into another directory"):
        restore_topic(topic, tmp_path / "data")


def test_broker_starts_with_a_restored_log(tmp_path: Path) -> None:
    """With gaps, transactions and all compressions; after that it appends."""
    data, end, aborted = all_kinds()
    service = ArchiveService(open_place(str(tmp_path / "archive")))
    manifest = service.write(new_manifest(), end, aborted, Source(0, [data]))
    manifest = service.write(manifest, end + 60, (), Source(end, [batches(end + 30, end + 60)]))
    service.save(manifest.starting_at(5))
    topic = open_archive(str(tmp_path / "archive")).topic("orders")
    restore_topic(topic, tmp_path / "data")
    back = b"".join(path.read_bytes() for path in sorted((tmp_path / "data").rglob("*.log")))
    assert decoded(back) == decoded(data + batches(end + 30, end + 60))
    with Broker.start(tmp_path / "data") as broker:
        found = consume(broker, end + 60, first=5, **{"isolation.level": "read_committed"})
    part = topic.partitions[0]
    wanted = [it for rows in part.read(5) for it in rows.column("offset").to_pylist()]
    assert [message.offset() for message in found] == wanted
