"""An archive as its readers see it."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pyarrow.parquet as pq
import pytest

from millstream.archive.manifest import ArchiveError
from millstream.archive.places import open_place
from millstream.archive.reading import open_archive
from millstream.archive.service import ArchiveService, Source
from tests.archive.scenes import START_MS, TOPIC_ID, archived, batches, new_manifest


def offsets(path: str, **ranges: object) -> list[int]:
    part = open_archive(path).topic("orders").partitions[0]
    rows = part.read(columns=["offset"], **ranges)  # type: ignore[arg-type]
    return [offset for each in rows for offset in each.column("offset").to_pylist()]


def test_archive_lists_topics_partitions_and_files(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    archived(place)
    ArchiveService(place).write(new_manifest(partition=10), 5, (), Source(0, [batches(0, 5)]))
    (tmp_path / "orders" / str(TOPIC_ID) / "_delta_log").mkdir()
    archive = open_archive(str(tmp_path))
    (topic,) = archive.topics()["orders"]
    assert (topic.topic, topic.topic_id, list(topic.partitions)) == ("orders", TOPIC_ID, [0, 10])
    part = topic.partitions[0]
    assert (part.start_offset, part.end_offset, len(part.files)) == (0, 250, 2)
    table = pq.read_table(
        part.path_of(part.files[1]), filesystem=archive.filesystem, partitioning=None
    )
    assert table.column("offset").to_pylist() == list(range(100, 250))


def test_records_are_selected_exactly(tmp_path: Path) -> None:
    archived(open_place(str(tmp_path)))
    path = str(tmp_path)
    assert offsets(path) == list(range(250))
    assert offsets(path, first_offset=95, end_offset=105) == list(range(95, 105))
    times = {"from_ms": START_MS + 500, "until_ms": START_MS + 1010}
    assert offsets(path, **times) == list(range(50, 101))


def test_bucket_is_read(bucket: str) -> None:
    archived(open_place(bucket))
    assert offsets(bucket, first_offset=240) == list(range(240, 250))


def test_start_inside_a_file_is_respected(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    ArchiveService(place).save(archived(place).starting_at(42))
    assert offsets(str(tmp_path)) == list(range(42, 250))


def test_topic_that_was_created_again_is_another_one(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    manifest = archived(place, [(0, 100)])
    later = UUID(int=5)
    again = ArchiveService(place).write(
        type(manifest)("orders", later, 0, 0, 0), 300, (), Source(200, [batches(200, 300)])
    )
    archive = open_archive(str(tmp_path))
    assert [it.topic_id for it in archive.topics()["orders"]] == [TOPIC_ID, later]
    assert archive.topic("orders").partitions[0].manifest == again
    assert archive.topic("orders", TOPIC_ID).partitions[0].manifest == manifest
    with pytest.raises(ArchiveError, match="no archive of orders with id"):
        archive.topic("orders", UUID(int=6))


def test_missing_topic_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="no archive of the topic payments"):
        open_archive(str(tmp_path / "nowhere")).topic("payments")
