"""The data directory of workers.

    <data>/
        .lock                       held by the parent of the workers, as by a single broker
        cluster/                    in the first of several data directories
            meta.properties         the cluster's id; written last: without it there are no workers
            workers.json            the number of workers
            rescaling.json          only while that number is changed (rescaling.py)
            1.lock, 2.lock          held by each worker while it lives: its presence
            __cluster_metadata-0/   the metadata log that all workers share
        workers/1/, workers/2/      the log directory of each worker, as any broker's

A worker's directory is not named `worker-1`, because that is the name of a partition of the topic
`worker`, and the data directory of a single broker may contain it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from millstream.broker.metadata.shared import METADATA_DIRECTORY
from millstream.errors import DirectoryLocked, StorageError
from millstream.storage import names
from millstream.storage.checkpoints import (
    MetaProperties,
    encode_uuid,
    random_uuid,
    read_meta_properties,
    write_meta_properties,
)
from millstream.storage.filesystem import FileSystem, read_file, replace_file

VERSION = 1
CLUSTER_NODE_ID = 0  # of meta.properties of the cluster's directory, which belongs to no worker
STATE = "workers.json"


class Layout:
    """The paths of the workers' files in one or more data directories."""

    def __init__(self, fs: FileSystem, roots: Sequence[str | Path]) -> None:
        self.fs = fs
        self.roots = tuple(str(Path(root).absolute()) for root in roots)
        self.cluster_root = self._find_cluster_root()
        self.cluster = f"{self.cluster_root}/{names.CLUSTER_DIRECTORY}"
        self.metadata = f"{self.cluster}/{METADATA_DIRECTORY}"
        self.rescaling = f"{self.cluster_root}/{names.RESCALING}"

    def _find_cluster_root(self) -> str:
        """Where the cluster's directory is; where it will be, beside the metadata of a single
        broker: a directory cannot be renamed to another disk."""
        for name in (names.CLUSTER_DIRECTORY, METADATA_DIRECTORY):
            found = [root for root in self.roots if self.fs.exists(f"{root}/{name}")]
            if len(found) > 1:
                raise StorageError(
                    f"{' and '.join(found)} both contain {name}: use the directories of one cluster"
                )
            if found:
                return found[0]
        return self.roots[0]

    def worker_directories(self, worker: int) -> list[str]:
        """The log directories of a worker, one in each data directory."""
        return [f"{root}/{names.WORKERS_DIRECTORY}/{worker}" for root in self.roots]

    def presence_lock(self, worker: int) -> str:
        return f"{self.cluster}/{worker}.lock"

    # State

    @property
    def cluster_id(self) -> str | None:
        """None if there are no workers yet."""
        meta = read_meta_properties(self.fs, self.cluster)
        return None if meta is None else meta.cluster_id

    @property
    def is_single_broker(self) -> bool:
        """Whether a single broker has used the directories."""
        return self.cluster_id is None and any(
            self.fs.exists(f"{root}/{names.META_PROPERTIES}") for root in self.roots
        )

    @property
    def workers(self) -> int:
        """The number of workers that the directories are laid out for."""
        path = f"{self.cluster}/{STATE}"
        try:
            state = json.loads(read_file(self.fs, path))
            if state["version"] != VERSION:
                raise StorageError(f"{path} has version {state['version']}, not {VERSION}")
            return int(state["workers"])
        except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
            raise StorageError(f"{path} cannot be read: {error!r}; restore it") from None

    def write_workers(self, workers: int) -> None:
        content = json.dumps({"version": VERSION, "workers": workers})
        replace_file(self.fs, f"{self.cluster}/{STATE}", content.encode())

    def lock(self, locks: ExitStack) -> None:
        """Keep other brokers and other parents out, until `locks` is closed."""
        for root in self.roots:
            self.fs.make_directory(root)
            try:
                fd = self.fs.lock(f"{root}/{names.LOCK}")
            except BlockingIOError:
                raise DirectoryLocked(
                    f"data directory {root} is in use by another process; stop that broker or "
                    "choose another directory"
                ) from None
            locks.callback(self.fs.close, fd)

    def check_stopped(self, workers: int) -> None:
        """Raise `DirectoryLocked` if one of the workers still runs."""
        for worker in range(1, workers + 1):
            try:
                self.fs.close(self.fs.lock(self.presence_lock(worker)))
            except BlockingIOError:
                raise DirectoryLocked(
                    f"worker {worker} of {self.cluster_root} is still running: wait until it has "
                    "stopped, or stop it"
                ) from None

    def create(self, workers: int) -> None:
        """Lay out empty directories."""
        self.fs.make_directory(self.cluster)
        self.write_workers(workers)
        self.write_cluster_id(encode_uuid(random_uuid()))

    def write_cluster_id(self, cluster_id: str) -> None:
        meta = MetaProperties(CLUSTER_NODE_ID, cluster_id, random_uuid())
        write_meta_properties(self.fs, self.cluster, meta)
        self.fs.sync_directory(self.cluster_root)

    def prepare_worker(self, worker: int, cluster_id: str) -> None:
        """Create the log directories of a worker that have none of their own yet."""
        for path in self.worker_directories(worker):
            self.fs.make_directory(path)
            meta = read_meta_properties(self.fs, path)
            if meta is None:
                meta = MetaProperties(worker, cluster_id, random_uuid())
                write_meta_properties(self.fs, path, meta)
                self.fs.sync_directory(str(Path(path).parent))
            elif (meta.node_id, meta.cluster_id) != (worker, cluster_id):
                raise StorageError(
                    f"{path} belongs to node {meta.node_id} of cluster {meta.cluster_id}, not to "
                    f"worker {worker} of {cluster_id}; use the directories of one cluster"
                )
