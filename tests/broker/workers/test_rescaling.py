"""Changing the number of workers: every partition moves once, whatever is killed when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.metadata.local import LocalMetadata
from millstream.broker.metadata.shared import read_image
from millstream.broker.workers import rescaling
from millstream.broker.workers.layout import Layout
from millstream.coordination.cluster import ClusterImage
from millstream.errors import DirectoryLocked, StorageError
from millstream.records.batch import parse_header
from millstream.records.record import Record, decode_batch, encode_batch
from millstream.storage import names
from millstream.storage.directories import LogDirectories
from millstream.storage.filesystem import OsFileSystem
from millstream.testing.clock import ManualClock
from tests.broker.workers.images import image_of
from tests.storage.processes import Killed, Process

FS = OsFileSystem()
TOPICS = {"t": 5, "one": 1, "worker": 2}
DELETED_BEFORE = 1  # the first record of each partition


def append(directories: LogDirectories, image: ClusterImage) -> None:
    """Two records in each partition, of which the first is deleted again."""
    for name, topic in image.topics.items():
        for index in range(len(topic.partitions)):
            log = directories.create(name, index, topic.id, config=_config())
            batch = encode_batch([Record(it, 0, None, f"{name}{index}".encode()) for it in (0, 1)])
            log.append(batch, [parse_header(batch)], leader_epoch=0, now_ms=0)
            log.delete_records_before(DELETED_BEFORE)
            directories.high_watermarks[name, index] = 2


def _config() -> Any:
    from millstream.config.topic import TopicConfig

    return TopicConfig()


def single_broker(
    path: Path, topics: Mapping[str, int] = TOPICS, *, node_id: int = 1, is_killed: bool = False
) -> str:
    """The data directory of a single broker; returns the cluster's id."""
    directories = LogDirectories.open([path], node_id=node_id)
    metadata = LocalMetadata.open(directories, ManualClock(), snapshot_bytes=1 << 20)
    wanted = image_of({name: [node_id] * count for name, count in topics.items()})
    features = metadata.image.features
    asyncio.run(
        metadata.change(lambda image: [it for it in wanted.records() if it not in features])
    )
    append(directories, metadata.image)
    if is_killed:
        directories.abandon()
    else:
        directories.close()
    return directories.cluster_id


def rescale(path: Path, workers: int, fs: Any = FS) -> None:
    rescaling.prepare(Layout(fs, [path]), workers)


def check(path: Path, workers: int) -> ClusterImage:
    """Every partition is where the metadata say, whole, and nowhere else."""
    layout = Layout(FS, [path])
    assert layout.workers == workers
    image = read_image(FS, layout.metadata)
    places: dict[tuple[str, int], int] = {}
    for worker in range(1, workers + 1):
        directories = LogDirectories.open(layout.worker_directories(worker), node_id=worker)
        assert directories.clean
        assert directories.cluster_id == layout.cluster_id
        for (name, index), log in directories.logs.items():
            assert (name, index) not in places
            places[name, index] = worker
            assert log.topic_id == image.topics[name].id
            assert log.log_start_offset == DELETED_BEFORE
            assert directories.high_watermarks[name, index] == 2
            data = log.read(1, max_bytes=1 << 20, end_offset=2, may_block=True)
            assert decode_batch(data, 0)[1].value == f"{name}{index}".encode()
        directories.close()
    assert places == {
        (name, index): partition.leader
        for name, topic in image.topics.items()
        for index, partition in enumerate(topic.partitions)
    }
    for topic in image.topics.values():
        for partition in topic.partitions:
            assert partition.replicas == partition.isr == (partition.leader,)
    assert image.brokers.keys() <= set(range(1, workers + 1))
    left = {it.name for it in (path / "workers").iterdir()}
    assert left == {str(worker) for worker in range(1, workers + 1)}
    assert not (path / names.RESCALING).exists()
    return image


def test_new_directory_is_laid_out(tmp_path: Path) -> None:
    rescale(tmp_path, 2)
    check_layout = Layout(FS, [tmp_path])
    assert check_layout.workers == 2
    rescale(tmp_path, 2)


def test_partitions_follow_the_number_of_workers(tmp_path: Path) -> None:
    cluster_id = single_broker(tmp_path, node_id=7)
    before: ClusterImage | None = None
    for workers in (2, 5, 3, 1):
        rescale(tmp_path, workers)
        image = check(tmp_path, workers)
        assert Layout(FS, [tmp_path]).cluster_id == cluster_id
        if before is not None:
            assert all(image.topics[name].id == topic.id for name, topic in before.topics.items())
        before = image


def test_moved_partition_gets_a_new_leader_epoch(tmp_path: Path) -> None:
    single_broker(tmp_path)
    rescale(tmp_path, 2)
    image = check(tmp_path, 2)
    for topic in image.topics.values():
        for partition in topic.partitions:
            assert partition.leader_epoch == (0 if partition.leader == 1 else 1)


def test_partitions_stay_in_their_data_directory(tmp_path: Path) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    directories = LogDirectories.open(roots, node_id=1)
    metadata = LocalMetadata.open(directories, ManualClock(), snapshot_bytes=1 << 20)
    wanted = image_of({"t": [1] * 4})
    asyncio.run(metadata.change(lambda image: list(wanted.records())))
    append(directories, metadata.image)
    disks = {key: log.path.split("/")[-2] for key, log in directories.logs.items() if key[0] == "t"}
    directories.close()
    layout = Layout(FS, roots)
    rescaling.prepare(layout, 2)
    for (name, index), disk in disks.items():
        (found,) = tmp_path.glob(f"{disk}/workers/*/{name}-{index}")
        assert found.is_dir()


def test_directory_that_was_not_stopped_cleanly_is_refused(tmp_path: Path) -> None:
    single_broker(tmp_path, is_killed=True)
    with pytest.raises(StorageError, match="start with `millstream serve` without --workers, stop"):
        rescale(tmp_path, 2)
    assert not (tmp_path / "workers").exists()


def test_running_worker_prevents_the_change(tmp_path: Path) -> None:
    single_broker(tmp_path)
    rescale(tmp_path, 2)
    presence = FS.lock(Layout(FS, [tmp_path]).presence_lock(1))
    with pytest.raises(DirectoryLocked, match="worker 1"):
        rescale(tmp_path, 3)
    FS.close(presence)
    rescale(tmp_path, 3)
    check(tmp_path, 3)


def test_unfinished_change_is_completed_before_another(tmp_path: Path) -> None:
    for step in count(40, 5):  # until it dies after the plan is written
        path = tmp_path / str(step)
        single_broker(path)
        with suppress(Killed):
            rescale(path, 2, Process(FS, dies_at=step))
        if (path / names.RESCALING).exists():
            break
    with pytest.raises(StorageError, match="start them with --workers N"):
        LogDirectories.open([path])
    rescale(path, 3)
    check(path, 3)


class KilledAtTheEnd(OsFileSystem):
    """Everything is done but for the removal of the plan."""

    def unlink(self, path: str) -> None:
        if path.endswith(names.RESCALING):
            raise Killed
        super().unlink(path)


def test_process_killed_after_a_worker_was_removed_can_be_completed(tmp_path: Path) -> None:
    single_broker(tmp_path, {"t": 3})
    rescale(tmp_path, 3)
    with pytest.raises(Killed):
        rescale(tmp_path, 2, KilledAtTheEnd())
    assert not (tmp_path / "workers" / "3").exists()
    rescale(tmp_path, 2)
    check(tmp_path, 2)


def kill_and_complete(path: Path, was: int, step: int) -> bool:
    """Returns whether the process was killed before it was done."""
    single_broker(path, {"t": 2, "worker": 2})
    if was:
        rescale(path, was)
    dying: Any = Process(FS, dies_at=step)
    with suppress(Killed):
        rescale(path, 2, dying)
    rescale(path, 2)
    check(path, 2)
    return bool(dying.is_dead)


@pytest.mark.parametrize("was", [0, 3])
def test_process_killed_at_a_step_can_be_completed(tmp_path: Path, was: int) -> None:
    """From a single broker to two workers, and from three workers to two."""
    step = 11
    while kill_and_complete(tmp_path / str(step), was, step):
        step += 53


@pytest.mark.slow
@pytest.mark.parametrize("was", [0, 3])
def test_process_killed_at_every_step_can_be_completed(tmp_path: Path, was: int) -> None:
    step = 0
    while kill_and_complete(tmp_path / str(step), was, step):
        step += 1


# Back to a single broker


def check_single(path: Path, topics: Mapping[str, int] = TOPICS, *, node_id: int = 1) -> None:
    """Every partition is the single broker's, whole, and nothing of the workers is left."""
    directories = LogDirectories.open([path], node_id=node_id)
    assert directories.clean
    metadata = LocalMetadata.open(directories, ManualClock(), snapshot_bytes=1 << 20)
    image = metadata.image
    assert {name: len(topic.partitions) for name, topic in image.topics.items()} == topics
    assert image.brokers.keys() <= {node_id}
    for name, topic in image.topics.items():
        for index, partition in enumerate(topic.partitions):
            assert partition.replicas == partition.isr == (partition.leader,) == (node_id,)
            log = directories.logs[name, index]
            assert log.topic_id == topic.id
            assert log.log_start_offset == DELETED_BEFORE
            assert directories.high_watermarks[name, index] == 2
            data = log.read(1, max_bytes=1 << 20, end_offset=2, may_block=True)
            assert decode_batch(data, 0)[1].value == f"{name}{index}".encode()
    asyncio.run(metadata.close())
    directories.close()
    assert not (path / "workers").exists()
    assert not list(path.glob("cluster/*"))
    assert not [it for it in (path / "__cluster_metadata-0").iterdir() if it.is_dir()]


def to_single(path: Path, fs: Any = FS, node_id: int = 1) -> None:
    rescaling.prepare_single_broker(Layout(fs, [path]), node_id)


@pytest.mark.parametrize("node_id", [1, 7])
def test_workers_become_a_single_broker_and_workers_again(tmp_path: Path, node_id: int) -> None:
    cluster_id = single_broker(tmp_path)
    rescale(tmp_path, 3)
    to_single(tmp_path, node_id=node_id)
    check_single(tmp_path, node_id=node_id)
    to_single(tmp_path, node_id=node_id)
    check_single(tmp_path, node_id=node_id)
    rescale(tmp_path, 2)
    check(tmp_path, 2)
    assert Layout(FS, [tmp_path]).cluster_id == cluster_id


def test_directory_without_workers_is_left_alone(tmp_path: Path) -> None:
    to_single(tmp_path / "new")
    assert not (tmp_path / "new").exists()
    single_broker(tmp_path / "single")
    to_single(tmp_path / "single", node_id=3)
    check_single(tmp_path / "single")


def test_workers_that_were_killed_do_not_become_a_single_broker(tmp_path: Path) -> None:
    single_broker(tmp_path)
    rescale(tmp_path, 2)
    (tmp_path / "workers" / "2" / names.CLEAN_SHUTDOWN).unlink()
    with pytest.raises(StorageError, match="start with --workers 2, stop, and try again"):
        to_single(tmp_path)
    assert Layout(FS, [tmp_path]).workers == 2


def test_directory_in_the_place_of_a_partition_is_refused_before_anything_changes(
    tmp_path: Path,
) -> None:
    single_broker(tmp_path)
    rescale(tmp_path, 2)
    stray = tmp_path / "t-0"
    stray.mkdir()
    with pytest.raises(StorageError, match=rf"{stray} is in the place to which .*/t-0 is to be"):
        to_single(tmp_path)
    stray.rmdir()
    to_single(tmp_path)
    check_single(tmp_path)


def kill_on_the_way_back(path: Path, step: int) -> bool:
    """Returns whether the process was killed before it was done."""
    topics = {"t": 2, "worker": 2}
    single_broker(path, topics)
    rescale(path, 2)
    dying: Any = Process(FS, dies_at=step)
    with suppress(Killed):
        to_single(path, dying)
    to_single(path)
    check_single(path, topics)
    return bool(dying.is_dead)


def test_process_killed_on_the_way_back_can_be_completed(tmp_path: Path) -> None:
    step = 11
    while kill_on_the_way_back(tmp_path / str(step), step):
        step += 53


@pytest.mark.slow
def test_process_killed_at_every_step_of_the_way_back_can_be_completed(tmp_path: Path) -> None:
    step = 0
    while kill_on_the_way_back(tmp_path / str(step), step):
        step += 1


def test_unfinished_way_back_is_completed_before_workers_start(tmp_path: Path) -> None:
    single_broker(tmp_path)
    rescale(tmp_path, 2)
    with pytest.raises(Killed):
        to_single(tmp_path, KilledAtTheEnd())
    with pytest.raises(StorageError, match="--workers"):
        LogDirectories.open([tmp_path])
    rescale(tmp_path, 3)
    check(tmp_path, 3)


# Placement


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=12), max_size=12),
    st.integers(1, 6),
)
def test_no_worker_gets_more_than_its_share_of_a_topic(
    topics: list[list[int]], workers: int
) -> None:
    image = image_of({f"t{index}": placed for index, placed in enumerate(topics)})
    placed = rescaling.place(image, workers)
    assert len(placed) == image.partition_count
    assert set(placed.values()) <= set(range(1, workers + 1))
    for name, topic in image.topics.items():
        counts = Counter(placed[name, index] for index in range(len(topic.partitions)))
        assert max(counts.values()) <= -(-len(topic.partitions) // workers)


def test_topics_of_one_partition_are_spread_over_all_workers() -> None:
    image = image_of({f"t{index}": [1] for index in range(10)})
    placed = rescaling.place(image, 2)
    assert Counter(placed.values()) == {1: 5, 2: 5}


def test_balanced_partitions_stay() -> None:
    image = image_of({"a": [1, 2, 3, 1], "b": [2, 3]})
    placed = rescaling.place(image, 3)
    assert all(image.topics[name].partitions[i].leader == it for (name, i), it in placed.items())
