"""The shell around coordinator shards: what makes pure state machines durable and answers clients.

A coordinator keeps its state in an internal topic, a shard for each partition. The shell

    loads      replays a partition's records into a new shard; until then clients are told
               COORDINATOR_LOAD_IN_PROGRESS. An empty partition is loaded at once; of the others
               only the last record of each key is decoded: compaction would drop the rest
    runs       hands an event to the shard, appends the records of its result as one batch
               (acks=all, so flushed), and replays them into the shard at once
    answers    a response leaves when its records are below the high watermark. One without records
               may tell of state that earlier records made: it waits for those
    recovers   when an append fails, what the shard holds is not what the log holds: those who wait
               are told NOT_COORDINATOR, and the shard is loaded again from the log
    times      keeps the shard's timers and hands it those that fire

Shards know nothing of this: `CoordinatorShard` is all that is asked of one. Everything runs on the
event loop, so a shard handles one event at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from millstream.broker.partition import ACKS_ALL, Partition, PendingAppend
from millstream.broker.partitions import PartitionTable
from millstream.broker.superseded import without_superseded
from millstream.broker.timers import Timers
from millstream.clock import Clock
from millstream.coordination.record_codec import CorruptRecord, RecordCodec
from millstream.coordination.result import CoordinatorRecord, Result, SetTimer
from millstream.errors import ApiError, ErrorCode, MillstreamError, NotCached
from millstream.records.batch import iterate_headers
from millstream.records.record import Record, decode_batch, encode_batch

logger = logging.getLogger(__name__)

LOAD_CHUNK_BYTES = 1_048_576


class CoordinatorShard(Protocol):
    """A pure state machine over the records of one partition."""

    def replay(self, record: CoordinatorRecord) -> None: ...

    def loaded(self, now_ms: int) -> Result[Any]: ...

    def handle_timer(self, name: tuple[str, ...], now_ms: int) -> Result[Any]: ...


Shard = TypeVar("Shard", bound=CoordinatorShard)
Response = TypeVar("Response")


class _Write:
    """Records on their way to the disk, and whom to answer when they are there."""

    __slots__ = ("answers", "pending")

    def __init__(self, pending: PendingAppend) -> None:
        self.pending = pending
        self.answers: list[tuple[asyncio.Future[Any], Any]] = []


class _LoadedShard(Generic[Shard]):
    """A shard and the partition that holds its records."""

    def __init__(self, shell: CoordinatorShell[Shard], partition: Partition) -> None:
        self.partition = partition
        self.shard = shell.new_shard()
        self.is_active = False
        self.is_closed = False
        self._shell = shell
        self._writes: deque[_Write] = deque()
        self._waiting: dict[object, asyncio.Future[Any]] = {}

    # --- loading

    async def load(self) -> None:
        """Replay the partition. Only the last record of a key counts, so only that is decoded."""
        partition, codec = self.partition, self._shell.codec
        latest: dict[bytes, bytes | None] = {}
        offset, end_offset = partition.log_start_offset, partition.high_watermark
        while offset < end_offset:
            batches, offset = without_superseded(await _read(partition, offset))
            for position, header in iterate_headers(batches):
                if not header.is_control:
                    _collect(decode_batch(batches, position), latest)
            await asyncio.sleep(0)  # others want the loop too
        for count, (key, value) in enumerate(latest.items()):
            if value is not None:
                self._replay_loaded(codec, key, value)
            if count % 1000 == 999:
                await asyncio.sleep(0)
        self.activate()

    def _replay_loaded(self, codec: RecordCodec, key: bytes, value: bytes) -> None:
        try:
            record = codec.decode(key, value)
        except CorruptRecord as error:
            logger.error("%r: a record is skipped: %s (key %r)", self.partition, error, key)
            return
        if record is not None:
            self.shard.replay(CoordinatorRecord(*record))

    def activate(self) -> None:
        self.is_active = True
        self.apply(self.shard.loaded(self._shell.clock.now_ms()))

    # --- events

    def apply(self, result: Result[Any]) -> _Write | None:
        """Bring about what an event decided. Raises `ApiError` when the records are refused."""
        write = self._append(result.records) if result.records else self._last_write()
        now_ms = self._shell.clock.now_ms()
        for timer in result.timers:
            if isinstance(timer, SetTimer):
                self._set_timer(timer.name, timer.deadline_ms - now_ms)
            else:
                self._shell.timers.cancel(self, timer.name)
        for answer in result.answers:
            future = self._waiting.pop(answer.token, None)
            if future is not None:
                _answer_after(write, future, answer.response)
        return write

    def _append(self, records: tuple[CoordinatorRecord, ...]) -> _Write:
        batch = self._encode(records)
        try:
            pending = self.partition.append(batch, acks=ACKS_ALL, internal=True)
        except ApiError as error:
            self.fail(error)
            raise not_coordinator(error) from error
        for record in records:
            self.shard.replay(record)
        write = _Write(pending)
        self._writes.append(write)
        pending.when_done(self._written)
        return write

    def _encode(self, records: tuple[CoordinatorRecord, ...]) -> bytes:
        now_ms, codec = self._shell.clock.now_ms(), self._shell.codec
        return encode_batch(
            Record(delta, now_ms, *codec.encode(record.key, record.value))
            for delta, record in enumerate(records)
        )

    def _last_write(self) -> _Write | None:
        return self._writes[-1] if self._writes else None

    async def settled(self) -> None:
        """Wait until all that was appended so far is durable."""
        await _written(self._last_write())

    def _written(self, pending: PendingAppend) -> None:
        """Appends are done in their order: everything up to this one may be answered."""
        if pending.error is not None:
            self.fail(pending.error)
            return
        while self._writes and self._writes[0].pending.next_offset <= pending.next_offset:
            for future, response in self._writes.popleft().answers:
                if not future.done():
                    future.set_result(response)

    def wait(self, token: object) -> asyncio.Future[Any]:
        """The future that an answer for this token completes."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        future.add_done_callback(lambda _: self._waiting.pop(token, None))
        return future

    def _set_timer(self, name: tuple[str, ...], delay_ms: int) -> None:
        self._shell.timers.set(self, name, delay_ms, lambda: self._timer_fired(name))

    def _timer_fired(self, name: tuple[str, ...]) -> None:
        if not self.is_active or self.is_closed:
            return
        try:
            self.apply(self.shard.handle_timer(name, self._shell.clock.now_ms()))
        except ApiError as error:
            logger.warning("%r: timer %s: %s", self.partition, "/".join(name), error)

    # --- the end

    def fail(self, error: ApiError) -> None:
        """The log did not take a record: this shard is wrong now. Load another from the log."""
        if self.is_closed:
            return
        logger.error(
            "%r: a coordinator's append failed, loading it anew: %s", self.partition, error
        )
        self.close(not_coordinator(error))
        self._shell.reload(self.partition)

    def close(self, error: ApiError) -> None:
        """Let go of everybody who waits."""
        self.is_closed = True
        unanswered = [future for write in self._writes for future, _ in write.answers]
        for future in (*unanswered, *self._waiting.values()):
            if not future.done():
                future.set_exception(error)
        self._writes.clear()
        self._shell.timers.cancel_all(self)


class CoordinatorShell(Generic[Shard]):
    """All shards of one internal topic that this broker leads."""

    def __init__(
        self,
        topic: str,
        codec: RecordCodec,
        new_shard: Callable[[], Shard],
        *,
        partitions: PartitionTable,
        timers: Timers,
        clock: Clock,
    ) -> None:
        self.topic = topic
        self.codec = codec
        self.new_shard = new_shard
        self.timers = timers
        self.clock = clock
        self._partitions = partitions
        self._shards: dict[int, _LoadedShard[Shard]] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._tokens = itertools.count()
        self._is_stopped = False

    # --- the life of shards

    def lead(self, index: int) -> None:
        """This broker leads the partition: load its shard, in the background if there is much."""
        partition = self._partitions.get(self.topic, index)
        if partition is None or partition.offline_error is not None or self._is_stopped:
            return
        known = self._shards.get(index)
        if known is not None and known.partition is partition and not known.is_closed:
            return
        loaded = _LoadedShard(self, partition)
        self._shards[index] = loaded
        if partition.log_start_offset >= partition.high_watermark:
            loaded.activate()
        else:
            task = asyncio.get_running_loop().create_task(self._load(loaded))
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)

    async def _load(self, loaded: _LoadedShard[Shard]) -> None:
        try:
            await loaded.load()
        except MillstreamError as error:
            logger.error("%r: its coordinator cannot be loaded: %s", loaded.partition, error)
            loaded.close(not_coordinator(error))

    def resign(self, index: int) -> None:
        """This broker no longer leads the partition."""
        loaded = self._shards.pop(index, None)
        if loaded is not None:
            gone = f"{self.topic}-{index} is not led by this broker any more"
            loaded.close(ApiError(ErrorCode.NOT_COORDINATOR, gone))

    def reload(self, partition: Partition) -> None:
        self._shards.pop(partition.index, None)
        if partition.offline_error is None:
            self.lead(partition.index)

    async def all_loaded(self) -> None:
        """Wait until nothing is being loaded."""
        while self._loads:
            await asyncio.wait(self._loads)

    async def stop(self) -> None:
        """Let what is written become durable and be answered; then let go of those who wait."""
        self._is_stopped = True
        for task in self._loads:
            task.cancel()
        for loaded in list(self._shards.values()):
            with contextlib.suppress(ApiError):
                await loaded.settled()
        for index in list(self._shards):
            self.resign(index)
        await asyncio.gather(*self._loads, return_exceptions=True)

    # --- events

    async def run(self, index: int, event: Callable[[Shard, int], Result[Response]]) -> Response:
        """Hand the shard an event; its response, once its records are durable."""
        loaded = self._active(index)
        result = event(loaded.shard, self.clock.now_ms())
        write = loaded.apply(result)
        assert result.response is not None, "an event without a token must be answered"
        await _written(write)
        return result.response

    async def run_waiting(
        self, index: int, event: Callable[[Shard, object, int], Result[Any]]
    ) -> Any:
        """The same for a request that may have to wait for others (JoinGroup, SyncGroup)."""
        loaded = self._active(index)
        token = next(self._tokens)
        result = event(loaded.shard, token, self.clock.now_ms())
        future = loaded.wait(token)
        try:
            write = loaded.apply(result)
        except ApiError:
            if not future.cancel():
                future.exception()  # the same error; the caller hears of it here
            raise
        if result.response is not None:
            _answer_after(write, future, result.response)
        return await future

    async def read(self, index: int, question: Callable[[Shard], Response]) -> Response:
        """Ask the shard; the answer waits until all that it tells of is durable."""
        loaded = self._active(index)
        answer = question(loaded.shard)
        await loaded.settled()
        return answer

    def tell_all(self, event: Callable[[Shard, int], Result[Any]]) -> None:
        """Hand an event that nobody waits for to every shard that is there."""
        for loaded in list(self._shards.values()):
            if not loaded.is_active or loaded.is_closed:
                continue
            try:
                loaded.apply(event(loaded.shard, self.clock.now_ms()))
            except ApiError as error:
                logger.warning("%r: %s", loaded.partition, error)

    def active_shards(self) -> list[Shard]:
        """The shards that can be asked, for what need not be durable yet (lag, metrics)."""
        return [loaded.shard for loaded in self._shards.values() if loaded.is_active]

    def _active(self, index: int) -> _LoadedShard[Shard]:
        self.lead(index)
        loaded = self._shards.get(index)
        if loaded is None or loaded.is_closed:
            raise ApiError(
                ErrorCode.NOT_COORDINATOR, f"{self.topic}-{index} is not led by this broker."
            )
        if not loaded.is_active:
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"{self.topic}-{index} is still being loaded; try again in a moment.",
            )
        return loaded


def not_coordinator(cause: Exception) -> ApiError:
    """What a client is told whose coordinator lost its log: find the coordinator again."""
    return ApiError(ErrorCode.NOT_COORDINATOR, f"The coordinator could not write: {cause}")


def _answer_after(write: _Write | None, future: asyncio.Future[Any], response: Any) -> None:
    if write is not None and not write.pending.is_done:
        write.answers.append((future, response))
    elif not future.done():
        future.set_result(response)


async def _written(write: _Write | None) -> None:
    if write is None or write.pending.is_done:
        return
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    write.answers.append((future, None))
    await future


def _collect(records: list[Record], latest: dict[bytes, bytes | None]) -> None:
    """Remember the last record of each key, in the order of those last records."""
    for record in records:
        if record.key is not None:
            latest.pop(record.key, None)
            latest[record.key] = record.value


async def _read(partition: Partition, offset: int) -> bytes | bytearray:
    try:
        return partition.read(offset, max_bytes=LOAD_CHUNK_BYTES)
    except NotCached:
        return await asyncio.to_thread(
            partition.read, offset, max_bytes=LOAD_CHUNK_BYTES, may_block=True
        )
