"""Changing the number of workers, while none runs: partitions move to other workers.

A partition's directory is renamed, within its data directory, and the metadata get its new replica.
A single broker's directory becomes that of workers in the same way, and that of workers a single
broker's: the number is 0 then.

Crash rule: `rescaling.json` lists all moves, with the offsets that the checkpoints of the old
directories have for the moved partitions. It is durable before the first move and removed after the
last step. Every step can be repeated, so the next start completes what a crash has cut off; a
broker that does not know of it refuses the directory (`LogDirectories`).

    plan   ->  rename directories  ->  move checkpoints  ->  commit replicas  ->  remove the old

Only directories that were stopped cleanly are moved: otherwise journals would have to be replayed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from millstream.broker.metadata.shared import (
    METADATA_DIRECTORY,
    SEEN_DIRECTORY,
    SharedMetadata,
    read_image,
)
from millstream.broker.workers.layout import Layout
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import (
    DIRECTORY_UNASSIGNED,
    MetadataRecord,
    PartitionChangeRecord,
    UnregisterBrokerRecord,
)
from millstream.errors import StorageError
from millstream.partitions import TopicPartition
from millstream.storage import names
from millstream.storage.checkpoints import (
    MetaProperties,
    random_uuid,
    read_meta_properties,
    read_offsets,
    write_clean_shutdown,
    write_meta_properties,
    write_offsets,
)
from millstream.storage.filesystem import FileSystem, read_file, replace_file

logger = logging.getLogger(__name__)

VERSION = 1
Placement: TypeAlias = dict[TopicPartition, int]
_SINGLE_BROKER_FILES = (
    names.META_PROPERTIES,
    names.CLEAN_SHUTDOWN,
    *names.OFFSET_CHECKPOINTS,
    *names.JOURNALS,
)


@dataclass(frozen=True)
class Move:
    """One partition's directory, from one log directory to another in the same data directory."""

    topic: str
    partition: int
    source: str
    target: str
    offsets: dict[str, int] = field(default_factory=dict)  # by checkpoint

    @property
    def key(self) -> TopicPartition:
        return self.topic, self.partition

    @property
    def name(self) -> str:
        return names.partition_directory(self.topic, self.partition)


@dataclass(frozen=True)
class Rescaling:
    workers: int  # 0: a single broker
    was: int  # likewise
    cluster_id: str
    placed: dict[str, list[int]]  # the worker of each partition, by topic
    moves: tuple[Move, ...]
    node_id: int = 1  # of the single broker that it becomes

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, content: bytes) -> Rescaling:
        fields: dict[str, Any] = json.loads(content)
        if fields.pop("version") != VERSION:
            raise StorageError("rescaling.json is of another version: finish with that one first")
        return cls(**{**fields, "moves": tuple(Move(**move) for move in fields["moves"])})


def place(image: ClusterImage, workers: int) -> Placement:
    """The worker of each partition. As many as possible stay where they are; no worker gets more
    than its share, of each topic and of all."""
    share_of_all = -(-image.partition_count // workers)
    placed: Placement = {}
    total = dict.fromkeys(range(1, workers + 1), 0)
    unplaced: list[tuple[str, dict[int, int], list[int]]] = []
    for name, topic in sorted(image.topics.items()):
        share = -(-len(topic.partitions) // workers)
        own = dict.fromkeys(total, 0)
        moving: list[int] = []
        for index, partition in enumerate(topic.partitions):
            worker = partition.replicas[0]
            if worker in own and own[worker] < share and total[worker] < share_of_all:
                placed[name, index] = worker
                own[worker] += 1
                total[worker] += 1
            else:
                moving.append(index)
        unplaced.append((name, own, moving))
    for name, own, moving in unplaced:
        for index in moving:
            worker = min(own, key=lambda it: (own[it], total[it], it))
            placed[name, index] = worker
            own[worker] += 1
            total[worker] += 1
    return placed


def _place_on(image: ClusterImage, node_id: int) -> Placement:
    return {
        (name, index): node_id
        for name, topic in image.topics.items()
        for index in range(len(topic.partitions))
    }


def prepare(layout: Layout, workers: int) -> None:
    """Lay out the data directories for this many workers. Blocks; the caller has locked them.

    Raises `MillstreamError`, and changes nothing, if that is not possible now.
    """
    _complete(layout)
    if layout.is_single_broker:
        _rescale(layout, 0, workers)
    elif layout.cluster_id is None:
        layout.create(workers)
    elif layout.workers != workers:
        _rescale(layout, layout.workers, workers)
    cluster_id = layout.cluster_id
    assert cluster_id is not None
    for worker in range(1, workers + 1):
        layout.prepare_worker(worker, cluster_id)


def prepare_single_broker(layout: Layout, node_id: int) -> None:
    """Make the data directories of workers those of a single broker with this id; leave others as
    they are. Otherwise like `prepare`."""
    _complete(layout)
    if layout.cluster_id is not None:
        _rescale(layout, layout.workers, 0, node_id)


def _complete(layout: Layout) -> None:
    """What was cut off, if anything was."""
    if layout.fs.exists(layout.rescaling):
        rescaling = Rescaling.decode(read_file(layout.fs, layout.rescaling))
        logger.warning(
            "completing the change from %s to %s",
            *(_count(rescaling.was), _count(rescaling.workers)),
        )
        execute(layout, rescaling)


def _count(workers: int) -> str:
    return f"{workers} workers" if workers else "a single broker"


def _rescale(layout: Layout, was: int, workers: int, node_id: int = 1) -> None:
    rescaling = plan(layout, was, workers, node_id)
    layout.fs.make_directory(layout.cluster)
    replace_file(layout.fs, layout.rescaling, rescaling.encode())
    layout.fs.sync_directory(layout.cluster_root)
    logger.info(
        "changing %s to %s: moving %d partitions",
        *(_count(was), _count(workers), len(rescaling.moves)),
    )
    execute(layout, rescaling)


# Planning


def plan(layout: Layout, was: int, workers: int, node_id: int = 1) -> Rescaling:
    """The moves to other workers. Changes nothing."""
    layout.check_stopped(was)
    sources = _sources(layout, was)
    for path in sources:
        if not layout.fs.exists(f"{path}/{names.CLEAN_SHUTDOWN}") and _has_logs(layout.fs, path):
            again = f"--workers {was}" if was else "`millstream serve` without --workers"
            raise StorageError(
                f"{path} was not stopped cleanly, so the number of workers cannot be changed: "
                f"start with {again}, stop, and try again"
            )
    metadata = layout.metadata if was else _single_metadata(layout)
    image = read_image(layout.fs, metadata)
    placed = place(image, workers) if workers else _place_on(image, node_id)
    moves = [
        move
        for path, root in sources.items()
        for move in _moves(layout.fs, path, root, placed, has_workers=workers > 0)
    ]
    _check_targets(layout.fs, moves)
    by_topic: dict[str, list[int]] = {}
    for (topic, _), worker in sorted(placed.items()):
        by_topic.setdefault(topic, []).append(worker)
    cluster_id = _cluster_id(layout, sources)
    return Rescaling(workers, was, cluster_id, by_topic, tuple(moves), node_id)


def _sources(layout: Layout, was: int) -> dict[str, str]:
    """The log directories that may contain partitions, and their data directories."""
    if not was:
        return {root: root for root in layout.roots}
    return {
        path: root
        for worker in range(1, was + 1)
        for path, root in zip(layout.worker_directories(worker), layout.roots, strict=True)
    }


def _check_targets(fs: FileSystem, moves: Iterable[Move]) -> None:
    """Raise if a directory is there already: one that no topic has, which was left behind."""
    sources = {f"{move.source}/{move.name}" for move in moves}
    for move in moves:
        path = f"{move.target}/{move.name}"
        if path not in sources and fs.exists(path):
            raise StorageError(
                f"{path} is in the place to which {move.source}/{move.name} is to be moved, and "
                "belongs to no topic: move it away, and start again"
            )


def _cluster_id(layout: Layout, sources: Iterable[str]) -> str:
    if layout.cluster_id is not None:
        return layout.cluster_id
    metas = [read_meta_properties(layout.fs, path) for path in sources]
    ids = {meta.cluster_id for meta in metas if meta is not None}
    if len(ids) != 1:
        raise StorageError(
            f"{', '.join(layout.roots)} belong to different clusters: {', '.join(sorted(ids))}"
        )
    return ids.pop()


def _moves(
    fs: FileSystem, path: str, root: str, placed: Placement, *, has_workers: bool
) -> Iterable[Move]:
    offsets = {
        checkpoint: read_offsets(fs, f"{path}/{checkpoint}")
        for checkpoint in names.OFFSET_CHECKPOINTS
    }
    for topic, partition in _logs(fs, path):
        worker = placed.get((topic, partition))  # None: a stray, which stays
        target = f"{root}/{names.WORKERS_DIRECTORY}/{worker}" if has_workers else root
        if worker is not None and target != path:
            own = {
                checkpoint: entries[topic, partition]
                for checkpoint, entries in offsets.items()
                if (topic, partition) in entries
            }
            yield Move(topic, partition, path, target, own)


def _logs(fs: FileSystem, path: str) -> list[TopicPartition]:
    if not fs.exists(path):
        return []
    found = map(names.parse_partition_directory, sorted(fs.listdir(path)))
    return [
        key
        for key in found
        if key is not None and fs.is_directory(f"{path}/{names.partition_directory(*key)}")
    ]


def _has_logs(fs: FileSystem, path: str) -> bool:
    return bool(_logs(fs, path))


# Executing


def execute(layout: Layout, rescaling: Rescaling) -> None:
    """All steps, those included that an earlier attempt has made."""
    fs = layout.fs
    targets = _prepare_targets(layout, rescaling)
    _rename_logs(fs, rescaling.moves)
    paths = {path for move in rescaling.moves for path in (move.source, move.target)}
    # The last steps of an earlier attempt, which remove directories, may have been made.
    left = sorted(filter(fs.exists, paths))
    for path in left:
        fs.sync_directory(path)
    for path in left:
        _move_offsets(fs, path, rescaling.moves)
    for path in targets:
        write_clean_shutdown(fs, path, -1)  # all that is in it was stopped cleanly
    _move_cluster(layout, rescaling)
    _remove_old(layout, rescaling)
    fs.unlink(layout.rescaling)
    if rescaling.workers:
        fs.sync_directory(layout.cluster)
    else:
        fs.remove_tree(layout.cluster)
        fs.sync_directory(layout.cluster_root)


def _prepare_targets(layout: Layout, rescaling: Rescaling) -> list[str]:
    """Returns the log directories that there will be."""
    if not rescaling.workers:
        for root in layout.roots:
            if read_meta_properties(layout.fs, root) is None:
                meta = MetaProperties(rescaling.node_id, rescaling.cluster_id, random_uuid())
                write_meta_properties(layout.fs, root, meta)
        return list(layout.roots)
    if not rescaling.was:
        _move_metadata(layout, _single_metadata(layout), layout.metadata)
    workers = range(1, rescaling.workers + 1)
    for worker in workers:
        layout.prepare_worker(worker, rescaling.cluster_id)
    return [path for worker in workers for path in layout.worker_directories(worker)]


def _move_cluster(layout: Layout, rescaling: Rescaling) -> None:
    """The metadata get the new places of all partitions, and are where they belong."""
    fs = layout.fs
    if rescaling.workers:
        _commit(layout, rescaling)
        layout.write_workers(rescaling.workers)
        layout.write_cluster_id(rescaling.cluster_id)
    elif fs.exists(layout.metadata):  # else they were moved when the process was killed
        _commit(layout, rescaling)
        if fs.exists(f"{layout.metadata}/{SEEN_DIRECTORY}"):
            fs.remove_tree(f"{layout.metadata}/{SEEN_DIRECTORY}")
        _move_metadata(layout, layout.metadata, _single_metadata(layout))


def _single_metadata(layout: Layout) -> str:
    return f"{layout.cluster_root}/{METADATA_DIRECTORY}"


def _rename_logs(fs: FileSystem, moves: Iterable[Move]) -> None:
    for move in moves:
        if fs.exists(f"{move.source}/{move.name}"):
            fs.rename(f"{move.source}/{move.name}", f"{move.target}/{move.name}")


def _move_metadata(layout: Layout, source: str, target: str) -> None:
    if layout.fs.exists(source):
        layout.fs.rename(source, target)
        layout.fs.sync_directory(layout.cluster)
        layout.fs.sync_directory(layout.cluster_root)


def _move_offsets(fs: FileSystem, path: str, moves: Iterable[Move]) -> None:
    """Make the checkpoints of a log directory those of the logs that it has now."""
    gone = {move.key for move in moves if move.source == path}
    come = {move.key: move for move in moves if move.target == path}
    for checkpoint in names.OFFSET_CHECKPOINTS:
        before = read_offsets(fs, f"{path}/{checkpoint}")
        after = {key: offset for key, offset in before.items() if key not in gone}
        for key, move in come.items():
            if checkpoint in move.offsets:
                after[key] = move.offsets[checkpoint]
        if after != before:
            write_offsets(fs, f"{path}/{checkpoint}", after)


def _commit(layout: Layout, rescaling: Rescaling) -> None:
    """New replicas and leaders, with new leader epochs; workers that are no more are forgotten."""
    import asyncio  # everything else here blocks

    from millstream.clock import SystemClock

    async def commit() -> None:
        home = SharedMetadata(
            layout.fs, layout.metadata, SystemClock(), node_id=0, snapshot_bytes=1 << 30
        )
        try:
            await home.change(lambda image: changes(image, rescaling))
        finally:
            await home.close()

    asyncio.run(commit())


def changes(image: ClusterImage, rescaling: Rescaling) -> list[MetadataRecord]:
    """The records that place all partitions on the workers; none if they are placed already."""
    records: list[MetadataRecord] = [
        UnregisterBrokerRecord(broker.id, broker.epoch)
        for broker in image.brokers.values()
        if not (1 <= broker.id <= rescaling.workers)
        and (rescaling.workers or broker.id != rescaling.node_id)
    ]
    for name, workers in rescaling.placed.items():
        topic = image.topics[name]
        records += [
            PartitionChangeRecord(
                index,
                topic.id,
                replicas=(worker,),
                isr=(worker,),
                leader=worker,
                directories=(DIRECTORY_UNASSIGNED,),
                removing_replicas=(),
                adding_replicas=(),
            )
            for index, worker in enumerate(workers)
            if topic.partitions[index].replicas != (worker,)
        ]
    return records


def _remove_old(layout: Layout, rescaling: Rescaling) -> None:
    fs = layout.fs
    if not rescaling.was:
        for root in layout.roots:
            for name in _SINGLE_BROKER_FILES:
                if fs.exists(f"{root}/{name}"):
                    fs.unlink(f"{root}/{name}")
            fs.sync_directory(root)
        return
    for worker in range(rescaling.workers + 1, rescaling.was + 1):
        for path in layout.worker_directories(worker):
            _remove_worker(fs, path)
    if not rescaling.workers:
        _remove_cluster(layout)


def _remove_cluster(layout: Layout) -> None:
    """All that only workers have, but the plan: it goes last."""
    fs = layout.fs
    for path in (f"{root}/{names.WORKERS_DIRECTORY}" for root in layout.roots):
        if fs.exists(path) and not fs.listdir(path):
            fs.remove_tree(path)
    for path in (f"{layout.cluster}/{name}" for name in sorted(fs.listdir(layout.cluster))):
        if path != layout.rescaling:
            fs.unlink(path)
    fs.sync_directory(layout.cluster)


def _remove_worker(fs: FileSystem, path: str) -> None:
    """Unless it contains something that was not moved: logs that were set aside, say."""
    if not fs.exists(path):
        return
    kept = [
        name
        for name in fs.listdir(path)
        if fs.is_directory(f"{path}/{name}") and not name.endswith(names.DELETE_DIRECTORY_SUFFIX)
    ]
    if kept:
        logger.warning(
            "keeping %s: it contains %s, which no topic needs; delete it if you do not either",
            *(path, ", ".join(sorted(kept))),
        )
        if fs.exists(f"{path}/{names.META_PROPERTIES}"):
            fs.unlink(f"{path}/{names.META_PROPERTIES}")
    else:
        fs.remove_tree(path)
    fs.sync_directory(str(Path(path).parent))
