"""All log directories of a broker (`log.dirs`), and the logs in them.

`LogDirectories.open` locks the directories, checks their node and cluster, and recovers their logs
in threads; `close` makes everything durable and records a clean stop. A new log goes to the
directory with the fewest logs. If a directory fails, only its own logs go offline.

A name is free for a new log when the disk holds nothing of a deleted log of that name
(`deletion.py`).

All calls belong to the owner's thread, except `sweep`, which only deletes unused files.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID, uuid4

from millstream.clock import Clock, SystemClock
from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, DirectoryFailed, DirectoryLocked, ErrorCode, StorageError
from millstream.partitions import TopicPartition
from millstream.storage import checkpoints, names
from millstream.storage.checkpointing import Checkpoint, write_for_clean_stop
from millstream.storage.checkpoints import MetaProperties
from millstream.storage.creation import NewLog, new_log, write_topic_ids
from millstream.storage.deletion import Deletion
from millstream.storage.directory import PRODUCER_EXPIRATION_MS, LogDirectory
from millstream.storage.filesystem import FileSystem, OsFileSystem, SyncBatch
from millstream.storage.flush import GroupFlush
from millstream.storage.handles import FileHandles
from millstream.storage.log import Log
from millstream.storage.moved import MovedLogs, UnfinishedMove, read_origins
from millstream.storage.recovery import StartingPoint, load_log
from millstream.storage.replay import replay_journal
from millstream.storage.steps import Steps, run_here

logger = logging.getLogger(__name__)

NAME_IS_TAKEN = "the disk is too full to forget the deleted log of that name; make room"

ConfigFor = Callable[[str], TopicConfig]


class LogDirectories:
    """See the module."""

    def __init__(self, fs: FileSystem, clock: Clock, handles: FileHandles) -> None:
        self._fs = fs
        self._clock = clock
        self._handles = handles
        self._locks: dict[LogDirectory, int] = {}
        self._retiring: set[LogDirectory] = set()
        self._deletions: list[Deletion] = []  # their names are taken
        self.directories: list[LogDirectory] = []
        self.logs: dict[TopicPartition, Log] = {}
        # Of a name that another directory has too, with another topic id: a topic was deleted
        # while this directory was offline, and created again. See `serve_topics`.
        self.namesakes: list[Log] = []
        # Moves that were under way at the last stop, and where new logs are to be created.
        self.unfinished_moves: list[UnfinishedMove] = []
        self.preferred: dict[TopicPartition, LogDirectory] = {}
        self._moved = MovedLogs()
        self._superseded: list[Log] = []  # logs that were moved, in their old places
        self.cluster_id = ""
        self.node_id = 0
        # Whether every directory that held logs was stopped cleanly. If not, leader epochs must be
        # bumped: offsets that consumers saw may be reused.
        self.clean = True
        self.high_watermarks: dict[TopicPartition, int] = {}

    @classmethod
    def open(
        cls,
        paths: Sequence[str | os.PathLike[str]],
        *,
        node_id: int = 1,
        cluster_id: str | None = None,
        config_for: ConfigFor = lambda topic: TopicConfig(),
        fs: FileSystem | None = None,
        clock: Clock | None = None,
        recovery_threads: int = 2,
        open_files_max: int | None = None,
        producer_expiration_ms: int = PRODUCER_EXPIRATION_MS,
    ) -> LogDirectories:
        """Open or create the directories.

        `cluster_id` None: use that of the directories, or create one. Raises `DirectoryLocked`
        if another process has one of them, `StorageError` if one belongs to another node or
        cluster, `DirectoryFailed` if none can be used. At most `open_files_max` files are open, by
        default half of what the process may open.
        """
        fs = fs or OsFileSystem()
        handles = FileHandles(fs, open_files_max=open_files_max)
        self = cls(fs, clock or SystemClock(), handles)
        self.node_id = node_id
        try:
            absolute = [str(Path(path).absolute()) for path in paths]
            self._claim(absolute, cluster_id, producer_expiration_ms)
            for directory in self.live_directories:
                self._load(directory, config_for, recovery_threads)
            if not self.live_directories:
                raise DirectoryFailed(
                    f"no log directory can be used: {self.directories[0].failure}"
                )
            self._finish_moves()
        except BaseException:
            self._unlock()
            raise
        return self

    @property
    def live_directories(self) -> list[LogDirectory]:
        return [directory for directory in self.directories if directory.failure is None]

    # Opening

    def _claim(self, paths: list[str], cluster_id: str | None, producer_expiration_ms: int) -> None:
        """Lock the directories and check that they belong to this node and cluster."""
        metas: list[tuple[LogDirectory, MetaProperties | None]] = []
        for path in paths:
            directory = LogDirectory(
                path, self._handles, uuid4(), producer_expiration_ms=producer_expiration_ms
            )
            self.directories.append(directory)
            try:
                self._fs.make_directory(path)
                self._lock(directory)
                self._refuse_workers(path)
                metas.append((directory, checkpoints.read_meta_properties(self._fs, path)))
            except OSError as error:
                directory.fail(error)
        known = {meta.cluster_id for _, meta in metas if meta is not None}
        if cluster_id is not None:
            known.add(cluster_id)
        if len(known) > 1:
            raise StorageError(
                f"log directories {', '.join(paths)} belong to different clusters: "
                f"{', '.join(sorted(known))}; use the directories of one cluster"
            )
        self.cluster_id = (
            known.pop() if known else checkpoints.encode_uuid(checkpoints.random_uuid())
        )
        for directory, meta in metas:
            self._adopt(directory, meta)

    def _refuse_workers(self, path: str) -> None:
        of_cluster = f"{names.CLUSTER_DIRECTORY}/{names.META_PROPERTIES}"
        if any(self._fs.exists(f"{path}/{name}") for name in (of_cluster, names.RESCALING)):
            raise StorageError(
                f"{path} is the data directory of several workers: start them with --workers N, go "
                "back to a single broker with --workers 0, or choose another directory"
            )

    def _lock(self, directory: LogDirectory) -> None:
        try:
            self._locks[directory] = self._fs.lock(f"{directory.path}/{names.LOCK}")
        except BlockingIOError:
            raise DirectoryLocked(
                f"log directory {directory.path} is in use by another process; "
                "stop that broker or choose another directory"
            ) from None

    def _adopt(self, directory: LogDirectory, meta: MetaProperties | None) -> None:
        if meta is None:
            meta = MetaProperties(self.node_id, self.cluster_id, checkpoints.random_uuid())
            try:
                checkpoints.write_meta_properties(self._fs, directory.path, meta)
                self._fs.sync_directory(str(Path(directory.path).parent))
            except OSError as error:
                directory.fail(error)
        elif meta.node_id != self.node_id:
            raise StorageError(
                f"log directory {directory.path} belongs to node {meta.node_id}, not to node "
                f"{self.node_id}; set node.id={meta.node_id} or choose another directory"
            )
        directory.directory_id = meta.directory_id

    def _load(self, directory: LogDirectory, config_for: ConfigFor, threads: int) -> None:
        """Recover all logs of a directory."""
        try:
            clean = checkpoints.take_clean_shutdown(self._fs, directory.path)
            recovery_points = self._read_offsets(directory, names.RECOVERY_POINTS)
            start_offsets = self._read_offsets(directory, names.LOG_START_OFFSETS)
            high_watermarks = self._read_offsets(directory, names.HIGH_WATERMARKS)
            first_dirty_offsets = self._read_offsets(directory, names.CLEANER_OFFSETS)
            found = self._find_logs(directory)
            origins = read_origins(directory, found)
            for key, origin in origins.items():
                if key not in recovery_points:
                    recovery_points[key] = origin.recovery_point
                    start_offsets[key] = origin.log_start_offset
                    high_watermarks[key] = origin.high_watermark
            self.high_watermarks.update(
                {key: high_watermarks[key] for key in found if key in high_watermarks}
            )
            mentioned = {*recovery_points, *start_offsets, *high_watermarks, *first_dirty_offsets}
            if not mentioned <= set(found):
                # Deleted before a crash, or by hand: a log of such a name begins without these.
                left_over = frozenset(mentioned.difference(found))
                Deletion(directory, left_over, (), self._deletions)
            synced = False
            if not clean:
                replay_journal(self._fs, directory.path, recovery_points)
                synced = self._sync_logs(directory, found)
            directory.journal.start()
        except OSError as error:
            directory.fail(error)
            return
        if found and not clean:
            self.clean = False
            count = len(found)
            logger.warning("%s was not stopped cleanly: recovering %d logs", directory.path, count)
        now_ms = self._clock.now_ms()

        def load(topic_partition: TopicPartition) -> Log | None:
            start = StartingPoint(
                clean,
                synced,
                recovery_points.get(topic_partition, 0),
                start_offsets.get(topic_partition, 0),
            )
            return self._load_log(directory, topic_partition, config_for, start, now_ms)

        if clean or threads <= 1:
            attempts = list(map(load, found))  # nothing to scan: threads would not help
        else:
            with ThreadPoolExecutor(threads, thread_name_prefix="log-recovery") as pool:
                attempts = list(pool.map(load, found))
        if directory.failure is None:
            for log in attempts:
                if log is not None:
                    if (log.topic, log.partition) in origins:
                        self._moved.add(log, origins[log.topic, log.partition])
                    self._add(log)

    def _finish_moves(self) -> None:
        """Delete what is left of moved logs in their old places. Blocks."""
        if self._moved:
            for deletion in self.prepare_deletions(self._superseded):
                run_here(deletion.steps())
            self._superseded.clear()
            self.checkpoint()
            self._moved.forget(self.live_directories)

    def _sync_logs(self, directory: LogDirectory, found: list[TopicPartition]) -> bool:
        """After a kill, some bytes of the last process are only in the page cache."""
        paths = [directory.path]
        for topic, partition in found:
            path = directory.log_path(topic, partition)
            metadata = f"{path}/{names.PARTITION_METADATA}"
            paths += [path, metadata] if self._fs.exists(metadata) else [path]
        return self._fs.sync_all(directory.path, paths)

    def _add(self, log: Log) -> None:
        other = self.logs.setdefault((log.topic, log.partition), log)
        if other is not log:
            if self._moved.are_copies(log, other):
                self.logs[log.topic, log.partition], old = self._moved.choose(log, other)
                self._superseded.append(old)
                self.namesakes.append(old)
            elif None in (log.topic_id, other.topic_id) or log.topic_id == other.topic_id:
                raise StorageError(
                    f"{log.topic}-{log.partition} is in both {other.directory.path} and "
                    f"{log.directory.path}; delete the one in the directory that failed last"
                )
            else:
                self.namesakes.append(log)
        log.directory.log_count += 1

    def _load_log(
        self,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        config_for: ConfigFor,
        start: StartingPoint,
        now_ms: int,
    ) -> Log | None:
        topic, partition = topic_partition
        try:
            path = directory.log_path(topic, partition)
            was_never_flushed = not start.clean and not start.recovery_point  # or that is unknown
            topic_id = checkpoints.read_partition_metadata(
                self._fs, path, from_disk=was_never_flushed
            )
            log = Log(directory, topic, partition, topic_id, config_for(topic))
            load_log(log, start, now_ms=now_ms)
        except OSError as error:
            directory.fail(error)
            return None
        return log

    def _read_offsets(self, directory: LogDirectory, name: str) -> dict[TopicPartition, int]:
        """An unreadable checkpoint counts as missing: everything is scanned."""
        try:
            return checkpoints.read_offsets(self._fs, f"{directory.path}/{name}")
        except StorageError as error:
            logger.warning("ignoring a damaged checkpoint: %s", error)
            return {}

    def _find_logs(self, directory: LogDirectory) -> list[TopicPartition]:
        found = []
        for name in sorted(self._fs.listdir(directory.path)):
            path = f"{directory.path}/{name}"
            if not self._fs.is_directory(path):
                continue
            topic_partition = names.parse_partition_directory(name)
            if topic_partition is not None:
                found.append(topic_partition)
            elif name.endswith(names.DELETE_DIRECTORY_SUFFIX):
                directory.add_garbage(path)
            elif name.endswith(names.FUTURE_DIRECTORY_SUFFIX):
                self._find_move(directory, name)
            else:
                logger.warning("ignoring %s: not a log", path)
        return found

    def _find_move(self, directory: LogDirectory, name: str) -> None:
        """A move that has not ended is to begin again."""
        key, path = names.parse_future_directory(name), f"{directory.path}/{name}"
        if key is None:
            logger.warning("deleting %s: it is not known which log was moved here", path)
            directory.add_garbage(path)
        else:
            self.unfinished_moves.append(UnfinishedMove(key, directory, path))

    # Creating and deleting

    def create(self, topic: str, partition: int, topic_id: UUID, config: TopicConfig) -> Log:
        """A new, empty log whose name may still have to be freed. Blocks."""
        run_here(self.free_names([(topic, partition)]))
        return self.add(NewLog(topic, partition, topic_id, config))

    def free_names(self, wanted: Iterable[TopicPartition]) -> Steps[None]:
        """Where a name is not free (`is_free`), remove what is left of the deleted log."""
        if not self._deletions:
            return
        keys = list(wanted)
        for deletion in [it for it in self._deletions if not it.names.isdisjoint(keys)]:
            yield deletion.execute
            deletion.complete()

    def add(self, new: NewLog) -> Log:
        """A new, empty log (see `creation.py`), in the directory that has the fewest.

        Raises `ApiError` if its name is not free, and `DirectoryFailed` if no directory works.
        """
        live = self.live_directories
        if not live:
            raise DirectoryFailed("all log directories have failed; restart the broker")
        preferred = self.preferred.pop((new.topic, new.partition), None) if self.preferred else None
        if preferred is not None and preferred.failure is None:
            directory = preferred
        else:
            directory = live[0] if len(live) == 1 else min(live, key=lambda it: it.log_count)
        if not self.is_free(new.topic, new.partition):
            path = directory.log_path(new.topic, new.partition)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"cannot create {path}: {NAME_IS_TAKEN}")
        log = new_log(directory, new, now_ms=self._clock.now_ms())
        directory.log_count += 1
        self.logs[log.topic, log.partition] = log
        return log

    def adopt(self, topic_ids: Mapping[Log, UUID]) -> None:
        """Give logs whose `partition.metadata` is missing or torn a topic id, durably. Blocks."""
        for directory in self.live_directories:
            own = {log: it for log, it in topic_ids.items() if log.directory is directory}
            if own:
                try:
                    write_topic_ids(directory, own)
                except OSError as error:
                    directory.fail(error)

    def serve_topics(self, topic_ids: Mapping[str, UUID]) -> None:
        """Where directories have logs of one name, serve the current topic's: `topic_ids` are by
        name. The others remain in `namesakes`, to be deleted."""
        for index, log in enumerate(self.namesakes):
            if log.topic_id == topic_ids.get(log.topic):
                name = (log.topic, log.partition)
                self.namesakes[index], self.logs[name] = self.logs[name], log
                self.high_watermarks.pop(name, None)

    def has_torn_id(self, log: Log) -> bool:
        """Whether a crash tore the log's `partition.metadata`: then it was never flushed."""
        path = f"{log.path}/{names.PARTITION_METADATA}"
        return log.topic_id is None and self._fs.exists(path)

    def prepare_deletions(
        self, wanted: Iterable[Log], *, keeps_files: bool = False
    ) -> list[Deletion]:
        """Delete logs. Run the steps of each deletion: the names are free then, and the next
        `sweep` deletes the files. After a crash a log may be back: the
        reconciler then deletes it again, because the metadata is durable first. With `keeps_files`
        the directories are renamed and stay."""
        by_directory: dict[LogDirectory, list[Log]] = {}
        for log in wanted:
            if log in self.namesakes:
                self.namesakes.remove(log)
            else:
                del self.logs[log.topic, log.partition]
                self.high_watermarks.pop((log.topic, log.partition), None)
            log.directory.log_count -= 1
            by_directory.setdefault(log.directory, []).append(log)
        return [
            Deletion.prepare(directory, logs, self._deletions, keeps_files=keeps_files)
            for directory, logs in by_directory.items()
        ]

    def replace(self, log: Log, moved: Log) -> Deletion | None:
        """A log was opened again, in another directory or in its own. Run the steps of the deletion
        of the old files, if there is one."""
        self.logs[log.topic, log.partition] = moved
        if moved.directory is log.directory:
            log.close()
            return None
        moved.directory.log_count += 1
        log.directory.log_count -= 1
        return Deletion.prepare(log.directory, [log], self._deletions)

    def discard(self, log: Log) -> Deletion:
        """Delete a log that is not served. Run the steps of the deletion."""
        return Deletion.prepare(log.directory, [log], self._deletions)

    def find_directory(self, path: str) -> LogDirectory | None:
        absolute = str(Path(path).absolute())
        return next((it for it in self.directories if it.path == absolute), None)

    def delete(self, topic: str, partition: int) -> None:
        """All three steps at once. Blocks."""
        for deletion in self.prepare_deletions([self.logs[topic, partition]]):
            run_here(deletion.steps())

    def is_free(self, topic: str, partition: int) -> bool:
        """Whether nothing is left of a deleted log of this name."""
        deletions = self._deletions
        return not deletions or not any((topic, partition) in it.names for it in deletions)

    def sweep(self) -> None:
        """Remove the files of deleted segments and logs. May run on any thread; blocks."""
        for directory in self.live_directories:
            try:
                directory.sweep()
            except OSError as error:
                directory.fail(error)

    def fail(self, directory: LogDirectory, error: BaseException) -> list[Log]:
        """Take a directory offline; returns its logs, which answer KAFKA_STORAGE_ERROR now."""
        directory.fail(error)
        return self._logs_in(directory)

    # Saving

    def prepare_journal_retirement(self) -> GroupFlush | None:
        """A flush after which a full journal, if any, can be dropped: run it in the background,
        then call `finish_journal_retirement`."""
        if self._retiring:
            return None  # one is running
        logs: list[Log] = []
        for directory in self.live_directories:
            log_ids = directory.journal.full_log_ids()
            if log_ids is not None:
                self._retiring.add(directory)
                logs += [log for log in self._logs_in(directory) if log.log_id in log_ids]
        return GroupFlush.prepare(logs, to_segments=True) if self._retiring else None

    def finish_journal_retirement(self) -> None:
        """The retirement's flush is complete: drop the journal that is no longer needed. On any
        thread; blocks."""
        for directory in self._retiring:
            if directory.failure is None:
                try:
                    directory.journal.drop_full()
                except OSError as error:
                    directory.fail(error)
        self._retiring.clear()

    def prepare_checkpoints(self) -> list[Checkpoint]:
        """Checkpoints of recovery points, start offsets and high watermarks. Execute each on any
        thread, then complete it."""
        return [
            Checkpoint.prepare(directory, self._logs_in(directory), self.high_watermarks)
            for directory in self.live_directories
        ]

    def checkpoint_steps(
        self, high_watermarks: Mapping[TopicPartition, int] | None = None
    ) -> Steps[None]:
        """Save all of that as it is now or later."""
        if high_watermarks is not None:
            self.high_watermarks.update(high_watermarks)
        for directory in self.live_directories:
            is_saved = False
            while not is_saved:
                checkpoint = yield from Checkpoint.prepare_steps(
                    directory, self._logs_in(directory), self.high_watermarks
                )
                yield checkpoint.execute
                checkpoint.complete()
                is_saved = not checkpoint.was_overtaken

    def checkpoint(self, high_watermarks: Mapping[TopicPartition, int] | None = None) -> None:
        """All steps at once. Blocks."""
        run_here(self.checkpoint_steps(high_watermarks))

    def _checkpoint_directory(self, directory: LogDirectory) -> None:
        """Save one directory's recovery points now, or raise."""
        checkpoint = Checkpoint.prepare(directory, self._logs_in(directory), self.high_watermarks)
        checkpoint.execute()
        checkpoint.complete()
        if checkpoint.error is not None:
            raise checkpoint.error

    def _logs_in(self, directory: LogDirectory) -> list[Log]:
        return [log for log in self._all_logs() if log.directory is directory]

    def _all_logs(self) -> list[Log]:
        return [*self.logs.values(), *self.namesakes]

    def close(self, *, broker_epoch: int = -1) -> None:
        """Stop cleanly: make everything durable, record the clean stop, release the locks."""
        for deletion in list(self._deletions):  # a thread may be executing one
            deletion.execute()
            deletion.complete()
        now_ms = self._clock.now_ms()
        self._create_files(now_ms)
        flush = GroupFlush.prepare(self._all_logs(), to_segments=True)
        flush.execute()
        flush.complete(now_ms)
        for directory in self.live_directories:
            try:
                batch = SyncBatch(self._fs, directory.path)
                for log in self._logs_in(directory):
                    if log.has_files:
                        write_for_clean_stop(log, batch)
                batch.commit()
                self._checkpoint_directory(directory)
                directory.journal.remove()
                checkpoints.write_clean_shutdown(self._fs, directory.path, broker_epoch)
            except OSError as error:
                directory.fail(error)
        self._release()

    def _create_files(self, now_ms: int) -> None:
        """Those of logs that were never appended to."""
        for log in self._all_logs():
            if not log.has_files and log.directory.failure is None:
                try:
                    log.create_files(now_ms)
                except ApiError as error:  # the next start creates the log again
                    logger.warning("%s", error)

    def abandon(self) -> None:
        """Close everything without saving, like a crash: for tests."""
        self._release()

    def _release(self) -> None:
        for log in self._all_logs():
            log.close()
        for directory in self.directories:
            directory.stop_sweeping()
            directory.journal.close()
        self._unlock()

    def _unlock(self) -> None:
        for fd in self._locks.values():
            self._fs.close(fd)
        self._locks.clear()
