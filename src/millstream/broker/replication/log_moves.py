"""Moves of logs between the log directories of this broker, one after the other.

A log is copied while its partition is used (`storage/moving.py`). For the end of the move, which
takes some milliseconds, the partition is stopped: clients get NOT_LEADER_OR_FOLLOWER and retry.
Then it takes its role again, with the log in its new place. Before that, appends in flight are
given a second to be answered; what is not is sent again by its producer, as when a leader changes.

A move that was accepted is durable: if the broker stops before its end, the next start begins it
again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from millstream.broker.metadata.store import METADATA_TOPIC
from millstream.errors import ApiError, ErrorCode, LogGone, StorageError
from millstream.storage.moved import forget_origin
from millstream.storage.moving import LogMove, Outcome, remove_copy

if TYPE_CHECKING:
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replicas.table import PartitionTable
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock
    from millstream.partitions import TopicPartition
    from millstream.storage.directories import LogDirectories
    from millstream.storage.directory import LogDirectory
    from millstream.storage.log import Log
    from millstream.storage.moved import UnfinishedMove

logger = logging.getLogger(__name__)

PREFERRED_MAX = 10_000  # directories remembered for replicas that are not here yet
PAUSE_SECONDS_MAX = 1.0  # so that a higher rate takes effect soon
MISSES_MAX = 10  # segments that were gone when they were to be copied, one after the other
DRAIN_SECONDS_MAX = 1.0
DRAIN_PAUSE_SECONDS = 0.002
MOVING = "its log is being moved to another log directory"


class LogMoves:
    """See the module. Belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        directories: LogDirectories,
        partitions: PartitionTable,
        configs: ConfigManager,
        tasks: Tasks,
        clock: Clock,
        unfollow: Callable[[Partition], None],
        retake_role: Callable[[Partition], None],
        on_directory_failed: Callable[[list[Log]], None],
    ) -> None:
        self._directories = directories
        self._partitions = partitions
        self._configs = configs
        self._tasks = tasks
        self._clock = clock
        self._unfollow = unfollow
        self._retake_role = retake_role
        self._on_directory_failed = on_directory_failed
        self._moves: dict[TopicPartition, LogMove] = {}  # in order; the first is under way
        self._running: asyncio.Task[None] | None = None
        self._finishing: TopicPartition | None = None
        self._is_stopped = False
        self._lock = asyncio.Lock()  # held while a request begins a move instead of another

    @property
    def under_way(self) -> Iterable[LogMove]:
        return self._moves.values()

    async def start(self) -> None:
        """Begin those again that had not ended at the last stop."""
        unfinished, self._directories.unfinished_moves = self._directories.unfinished_moves, []
        for each in unfinished:
            if each.target.failure is None:
                try:
                    await self._begin_again(each)
                except (ApiError, OSError, StorageError) as error:  # the next start tries again
                    logger.error("%s-%d is not moved on to %s: %s", *each.key, each.path, error)

    async def _begin_again(self, unfinished: UnfinishedMove) -> None:
        key, target, path = unfinished
        partition = self._partitions.get(*key)
        log = None if partition is None or key in self._moves else partition.log
        if log is not None and log.directory is not target and unfinished.is_of(log):
            await self._begin(LogMove(log, target, path))
        else:
            await self._tasks.run_blocking(remove_copy, target, path)

    async def stop(self) -> None:
        """The next start continues."""
        self._is_stopped = True
        await self.idle()

    async def idle(self) -> None:
        """Return when nothing is moved any more."""
        if self._running is not None:
            await asyncio.wait([self._running])

    async def move(self, topic: str, index: int, path: str) -> None:
        """Begin to move a log to this log directory, instead of any other. Raises `ApiError`."""
        directory = self._directories.find_directory(path)
        if directory is None:
            known = ", ".join(it.path for it in self._directories.directories)
            raise ApiError(
                ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not one of log.dirs, which are {known}"
            )
        directory.check()
        if topic == METADATA_TOPIC:
            raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{topic} cannot be moved")
        async with self._lock:
            await self._move((topic, index), directory)

    async def _move(self, key: TopicPartition, directory: LogDirectory) -> None:
        while self._finishing == key:
            assert self._running is not None
            await asyncio.wait([self._running], timeout=0.05)
        log = self._log(key, directory)
        moving = self._moves.get(key)
        if moving is not None and moving.target is directory:
            return
        if moving is not None:
            del self._moves[key]
            await self._clean_up(moving)
            log = self._log(key, directory)
        if log.directory is not directory:
            await self._begin(LogMove(log, directory))

    def _log(self, key: TopicPartition, directory: LogDirectory) -> Log:
        partition = self._partitions.get(*key)
        if partition is None:
            if len(self._directories.preferred) < PREFERRED_MAX:
                self._directories.preferred[key] = directory  # if it gets one before it stops
            raise ApiError(
                ErrorCode.REPLICA_NOT_AVAILABLE, f"there is no replica of {key[0]}-{key[1]} here"
            )
        partition.log.check()
        return partition.log

    async def _begin(self, move: LogMove) -> None:
        log, target = move.log, move.target
        try:
            await self._tasks.run_blocking(move.begin)
        except OSError as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"{target.path}: {error}") from error
        self._moves[log.topic, log.partition] = move
        logger.info(
            "moving %s-%d from %s to %s",
            *(log.topic, log.partition, log.directory.path, target.path),
        )
        if self._running is None and not self._is_stopped:
            self._running = self._tasks.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while self._moves and not self._is_stopped:
                key, move = next(iter(self._moves.items()))
                try:
                    if not await self._carry_out(key, move):
                        continue  # stopped, or not wanted any more
                except LogGone:
                    logger.info("%s-%d was deleted before it was moved", *key)
                except (ApiError, OSError, StorageError) as error:
                    if self._moves.get(key) is move:  # else its copy was removed meanwhile
                        logger.error("%s-%d is not moved to %s: %s", *key, move.target.path, error)
                except Exception:
                    logger.exception("%s-%d is not moved to %s", *key, move.target.path)
                if self._moves.get(key) is move:
                    del self._moves[key]
                    await self._clean_up(move)
        finally:
            self._running = None

    async def _carry_out(self, key: TopicPartition, move: LogMove) -> bool:
        """Returns whether it was carried out to its end."""
        misses = 0
        while (piece := move.next_piece()) is not None:
            was_there = await self._tasks.run_blocking(move.copy, piece)
            move.copied(piece, was_there)
            misses = 0 if was_there else misses + 1
            if misses > MISSES_MAX:
                raise StorageError(f"{piece.segment.handle.path} is missing")
            await self._pace(move, piece.end - piece.start)
            if self._is_stopped or self._moves.get(key) is not move:
                return False
        self._finishing = key
        try:
            await self._finish(move)
        finally:
            self._finishing = None
        return True

    async def _pace(self, move: LogMove, copied_bytes: int) -> None:
        """Keep to `replica.alter.log.dirs.io.max.bytes.per.second`, which may change meanwhile."""
        waited = 0.0
        while not (self._is_stopped or move.log.is_deleted):
            rate = self._configs.current.replica_alter_log_dirs_io_max_bytes_per_second
            left = copied_bytes / max(rate, 1) - waited
            if left <= 0:
                return
            pause = min(left, PAUSE_SECONDS_MAX)
            await asyncio.sleep(pause)
            waited += pause

    async def _finish(self, move: LogMove) -> None:
        log = move.log
        partition = self._partitions.get(log.topic, log.partition)
        if partition is None or partition.log is not log:
            raise LogGone(log.topic, log.partition)
        self._unfollow(partition)
        await self._drain(partition)
        partition.stop(partition.leader_epoch, MOVING)
        steps = move.finish(
            self._directories,
            high_watermark=partition.high_watermark,
            now_ms=self._clock.now_ms(),
        )
        try:
            outcome = await self._tasks.run_steps(steps)
        except Exception as error:  # it cannot be opened in its old place either
            if not isinstance(error, LogGone):
                log.directory.fail(error)
                self._on_directory_failed([log])
            raise
        self._resume(partition, outcome)
        if outcome.deletion is not None:
            await self._tasks.run_steps(outcome.deletion.steps())
        if outcome.error is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, str(outcome.error))
        if outcome.log is not None:
            if outcome.deletion is None or outcome.deletion.is_durable:
                await self._forget(outcome.log)
            logger.info("%s-%d is in %s now", log.topic, log.partition, move.target.path)

    async def _drain(self, partition: Partition) -> None:
        """Refuse appends, and let those be answered that wait for a flush or for followers: else
        their producers would send them again."""
        log = partition.log
        log.is_truncating = True
        log.refuse_small_appends()
        deadline = self._tasks.loop.time() + DRAIN_SECONDS_MAX
        while partition.leadership.waiting_count and self._tasks.loop.time() < deadline:
            await asyncio.sleep(DRAIN_PAUSE_SECONDS)
        log.is_truncating = False
        if log.is_deleted or partition.log is not log:
            raise LogGone(log.topic, log.partition)

    def _resume(self, partition: Partition, outcome: Outcome) -> None:
        log = outcome.log
        if log is None:
            return
        if log is not partition.log:
            partition.replace_log(log)
        if log.directory.failure is not None:
            self._on_directory_failed([log])
        else:
            self._retake_role(partition)

    async def _forget(self, log: Log) -> None:
        """Where it was, when the checkpoints of its directory have its offsets."""
        await self._tasks.run_steps(
            self._directories.checkpoint_steps(self._partitions.high_watermarks())
        )
        await self._tasks.run_blocking(forget_origin, log)

    async def _clean_up(self, move: LogMove) -> None:
        if move.target.failure is not None:
            return
        try:
            await self._tasks.run_blocking(move.clean_up)
        except OSError as error:
            logger.warning("%s is not removed: %s", move.path, error)
