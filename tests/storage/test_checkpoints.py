"""The small text files, byte for byte as Kafka writes them, and what damage does to them."""

from __future__ import annotations

from uuid import UUID

import pytest

from millstream.errors import StorageError
from millstream.storage import checkpoints
from millstream.storage.checkpoints import MetaProperties
from millstream.storage.filesystem import read_file, write_file
from millstream.testing.filesystem import MemoryFileSystem

PATH = "/data/recovery-point-offset-checkpoint"
TOPIC_ID = UUID("0a8b1f2e-1111-4222-8333-444455556666")


@pytest.fixture
def fs() -> MemoryFileSystem:
    fs = MemoryFileSystem()
    fs.make_directory("/data")
    return fs


def test_offsets_are_written_in_kafkas_format(fs: MemoryFileSystem) -> None:
    checkpoints.write_offsets(fs, PATH, {("orders", 0): 1042, ("a-b", 1): 977})
    assert read_file(fs, PATH) == b"0\n2\norders 0 1042\na-b 1 977\n"
    assert checkpoints.read_offsets(fs, PATH) == {("orders", 0): 1042, ("a-b", 1): 977}


def test_missing_or_empty_checkpoint_holds_nothing(fs: MemoryFileSystem) -> None:
    assert checkpoints.read_offsets(fs, PATH) == {}
    write_file(fs, PATH, b"", sync=False)
    assert checkpoints.read_offsets(fs, PATH) == {}


@pytest.mark.parametrize(
    "content",
    [b"1\n0\n", b"0\n2\norders 0 5\n", b"0\n1\norders 0\n", b"0\n1\norders 0 x\n", b"0\n", b"\xff"],
)
def test_damaged_checkpoint_is_refused(fs: MemoryFileSystem, content: bytes) -> None:
    write_file(fs, PATH, content, sync=False)
    with pytest.raises(StorageError, match=PATH):
        checkpoints.read_offsets(fs, PATH)


def test_checkpoint_survives_a_power_cut_once_written(fs: MemoryFileSystem) -> None:
    checkpoints.write_offsets(fs, PATH, {("orders", 0): 1})
    fs.crash()
    assert checkpoints.read_offsets(fs, PATH) == {("orders", 0): 1}


def test_ids_are_written_as_kafka_writes_them() -> None:
    assert checkpoints.encode_uuid(TOPIC_ID) == "CosfLhERQiKDM0REVVVmZg"
    assert checkpoints.decode_uuid("CosfLhERQiKDM0REVVVmZg") == TOPIC_ID
    with pytest.raises(StorageError, match="not an id"):
        checkpoints.decode_uuid("short")


def test_random_ids_do_not_begin_with_a_dash() -> None:
    ids = {checkpoints.encode_uuid(checkpoints.random_uuid()) for _ in range(500)}
    assert len(ids) == 500
    assert not any(text.startswith("-") for text in ids)


def test_meta_properties_round_trip(fs: MemoryFileSystem) -> None:
    meta = MetaProperties(3, "MkU3OEVBNTcwNTJENDM2Qg", TOPIC_ID)
    checkpoints.write_meta_properties(fs, "/data", meta)
    assert b"\nversion=1\n" in read_file(fs, "/data/meta.properties")
    assert checkpoints.read_meta_properties(fs, "/data") == meta


def test_meta_properties_written_by_kafka_are_read(fs: MemoryFileSystem) -> None:
    content = (
        b"#\n#Sun Nov 15 04:39:02 UTC 2026\nnode.id=1\ndirectory.id=CosfLhERQiKDM0REVVVmZg\n"
        b"version=1\ncluster.id=abc\\=\\=\n"
    )
    write_file(fs, "/data/meta.properties", content, sync=False)
    assert checkpoints.read_meta_properties(fs, "/data") == MetaProperties(1, "abc==", TOPIC_ID)


def test_meta_properties_without_an_id_are_refused(fs: MemoryFileSystem) -> None:
    assert checkpoints.read_meta_properties(fs, "/data") is None
    write_file(fs, "/data/meta.properties", b"version=1\nnode.id=1\n", sync=False)
    with pytest.raises(StorageError, match=r"meta\.properties"):
        checkpoints.read_meta_properties(fs, "/data")


def test_partition_metadata_round_trips(fs: MemoryFileSystem) -> None:
    content = checkpoints.encode_partition_metadata(TOPIC_ID)
    assert content == b"version: 0\ntopic_id: CosfLhERQiKDM0REVVVmZg"
    write_file(fs, "/data/partition.metadata", content, sync=False)
    assert checkpoints.read_partition_metadata(fs, "/data") == TOPIC_ID


def test_torn_partition_metadata_is_as_good_as_none(fs: MemoryFileSystem) -> None:
    content = checkpoints.encode_partition_metadata(TOPIC_ID)
    assert checkpoints.read_partition_metadata(fs, "/data") is None
    for size in range(len(content)):
        write_file(fs, "/data/partition.metadata", content[:size], sync=False)
        assert checkpoints.read_partition_metadata(fs, "/data") is None


def test_partition_metadata_of_another_version_is_refused(fs: MemoryFileSystem) -> None:
    write_file(fs, "/data/partition.metadata", b"version: 1\ntopic_id: x", sync=False)
    with pytest.raises(StorageError, match="version 0"):
        checkpoints.read_partition_metadata(fs, "/data")


def test_clean_shutdown_is_seen_once_and_durably_forgotten(fs: MemoryFileSystem) -> None:
    checkpoints.write_clean_shutdown(fs, "/data", 42)
    assert read_file(fs, "/data/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":42}'
    assert checkpoints.take_clean_shutdown(fs, "/data")
    fs.crash()
    assert not checkpoints.take_clean_shutdown(fs, "/data")
