"""Snapshots of the metadata: whole or not used."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from millstream.broker.metadata.snapshot import (
    newest_snapshot,
    remove_snapshots_before,
    write_snapshot,
)
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import (
    FeatureLevelRecord,
    PartitionRecord,
    TopicRecord,
)
from millstream.records.batch import iterate_headers
from millstream.storage.filesystem import OsFileSystem

TOPIC_ID = uuid.UUID(int=77)
FS = OsFileSystem()


def image(partitions: int, version: int = 9) -> ClusterImage:
    return ClusterImage().apply(
        [
            FeatureLevelRecord("metadata.version", 30),
            TopicRecord("t", TOPIC_ID),
            *(PartitionRecord(index, TOPIC_ID, (1,), (1,), 1) for index in range(partitions)),
        ],
        version,
    )


def test_snapshot_holds_the_image_and_its_version(tmp_path: Path) -> None:
    made = image(5_000)
    end_offset = write_snapshot(FS, str(tmp_path), made, epoch=3, now_ms=1)
    assert end_offset == 10
    assert [path.name for path in tmp_path.iterdir()] == [
        "00000000000000000010-0000000003.checkpoint"
    ]
    assert newest_snapshot(FS, str(tmp_path)) == made


def test_snapshot_is_batches_between_a_header_and_a_footer(tmp_path: Path) -> None:
    write_snapshot(FS, str(tmp_path), image(5_000), epoch=3, now_ms=1)
    content = next(tmp_path.iterdir()).read_bytes()
    headers = [header for _, header in iterate_headers(content)]
    assert [header.is_control for header in headers] == [True, False, False, False, True]
    assert [header.base_offset for header in headers] == [0, 1, 2001, 4001, 5003]
    assert {header.leader_epoch for header in headers} == {3}


def test_nothing_is_read_where_there_is_no_snapshot(tmp_path: Path) -> None:
    assert newest_snapshot(FS, str(tmp_path)) == ClusterImage()


@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_snapshot_gives_way_to_an_older_one(tmp_path: Path, damage: str) -> None:
    older, newer = image(1, version=5), image(2, version=9)
    write_snapshot(FS, str(tmp_path), older, epoch=1, now_ms=1)
    write_snapshot(FS, str(tmp_path), newer, epoch=1, now_ms=1)
    path = tmp_path / "00000000000000000010-0000000001.checkpoint"
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[:-80]  # the footer's batch and a little more
    else:
        content[150] ^= 1
    path.write_bytes(content)
    assert newest_snapshot(FS, str(tmp_path)) == older


def test_replaced_snapshots_are_removed(tmp_path: Path) -> None:
    write_snapshot(FS, str(tmp_path), image(1, version=5), epoch=1, now_ms=1)
    write_snapshot(FS, str(tmp_path), image(1, version=9), epoch=1, now_ms=1)
    remove_snapshots_before(FS, str(tmp_path), 10)
    assert [path.name for path in tmp_path.iterdir()] == [
        "00000000000000000010-0000000001.checkpoint"
    ]
