"""The runtime of coordinator shards: makes pure state machines durable and answers clients.

A coordinator keeps its state in an internal topic, a shard for each partition. The runtime

    loads      replays a partition's records into a new shard; until then clients get
               COORDINATOR_LOAD_IN_PROGRESS. An empty partition is loaded at once; of the others
               only current records are decoded (`loading.py`). Waits for records that are not
               flushed yet: they are in the log, so they count
    runs       hands an event to the shard, appends the records of its result as one batch
               (acks=all, so flushed), and replays them into the shard at once. Records of a
               transaction are pending in the shard until the marker that ends it is appended
    answers    a response leaves when its records are below the high watermark. One without records
               may depend on state from earlier records: it waits for those
    recovers   when an append fails, the shard no longer matches the log: waiting requests get
               NOT_COORDINATOR, and the shard is reloaded from the log
    times      keeps the shard's timers and calls it when they fire
    prunes     deletes what a newer snapshot has made obsolete, where the topic is not compacted

Shards do not depend on this: they only implement `CoordinatorShard`. Everything runs on the
event loop, so a shard handles one event at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from millstream.broker.coordinators.loading import (
    Histories,
    LastRecords,
    LoadedRecord,
    SnapshotOffsets,
)
from millstream.broker.coordinators.timers import Timers
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import ACKS_ALL, ACKS_LEADER, PendingAppend
from millstream.broker.replicas.table import PartitionTable
from millstream.clock import Clock
from millstream.coordination.record_codec import CorruptRecord, RecordCodec
from millstream.coordination.result import CoordinatorRecord, Result, SetTimer
from millstream.coordination.transactions.marker import TransactionMarker
from millstream.errors import ApiError, ErrorCode, MillstreamError, NotCached
from millstream.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from millstream.records.record import Record, encode_batch

logger = logging.getLogger(__name__)

LOAD_CHUNK_BYTES = 1_048_576

Transaction: TypeAlias = tuple[int, int]  # producer id and epoch
NO_TRANSACTION: Transaction = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class CoordinatorShard(Protocol):
    """A pure state machine over the records of one partition."""

    def replay(self, record: CoordinatorRecord) -> None: ...

    def loaded(self, now_ms: int) -> Result[Any]: ...

    def handle_timer(self, name: tuple[str, ...], now_ms: int) -> Result[Any]: ...


@runtime_checkable
class TransactionalShard(Protocol):
    """Extra methods a shard must have if its records can be transactional."""

    def replay_pending(self, record: CoordinatorRecord, producer_id: int) -> None: ...

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None: ...


Shard = TypeVar("Shard", bound=CoordinatorShard)
Response = TypeVar("Response")


class _Write:
    """Records being flushed, and the answers to send when they are durable."""

    __slots__ = ("answers", "pending")

    def __init__(self, pending: PendingAppend) -> None:
        self.pending = pending
        self.answers: list[tuple[asyncio.Future[Any], Any]] = []


class _LoadedShard(Generic[Shard]):
    """A shard and the partition with its records."""

    def __init__(
        self, runtime: CoordinatorRuntime[Shard], partition: Partition, leader_epoch: int
    ) -> None:
        self.partition = partition
        self.leader_epoch = leader_epoch  # in which it was loaded
        self.shard = runtime.new_shard()
        self.is_active = False
        self.is_closed = False
        self._runtime = runtime
        self._writes: deque[_Write] = deque()
        self._waiting: dict[object, asyncio.Future[Any]] = {}
        self._snapshots = SnapshotOffsets(runtime.codec) if runtime.codec.has_updates else None

    # --- loading

    async def load(self) -> None:
        """Replay the current records of the partition."""
        partition, codec = self.partition, self._runtime.codec
        records = Histories(codec) if codec.has_updates else LastRecords()
        offset, end_offset = partition.log_start_offset, partition.log.log_end_offset
        await _until_visible(partition, end_offset)
        while offset < end_offset:
            offset = records.collect(await _read(partition, offset))
            await asyncio.sleep(0)  # let other tasks run
        for count, record in enumerate(records):
            self._replay_loaded(record)
            if count % 1000 == 999:
                await asyncio.sleep(0)
        if not self.is_closed:  # this broker may have resigned meanwhile
            self.activate()

    def _replay_loaded(self, loaded: LoadedRecord) -> None:
        try:
            decoded = self._runtime.codec.decode(loaded.key, loaded.value)
        except CorruptRecord as error:
            logger.error(
                "%r: skipping the record at offset %d: %s (key %r)",
                self.partition,
                loaded.offset,
                error,
                loaded.key,
            )
            return
        if decoded is None:
            return
        if self._snapshots is not None:
            self._snapshots.observe(loaded.key, loaded.value, loaded.offset)
        self._replay(CoordinatorRecord(*decoded), loaded.producer_id)

    def activate(self) -> None:
        self.is_active = True
        self.apply(self.shard.loaded(self._runtime.clock.now_ms()))
        if self._runtime.on_loaded is not None:
            self._runtime.on_loaded(self.partition.index, self.shard)

    # --- events

    def apply(
        self, result: Result[Any], transaction: Transaction = NO_TRANSACTION
    ) -> _Write | None:
        """Apply the result of an event. Raises `ApiError` if the records are refused."""
        if result.records:
            pending = self._append(result.records, transaction)
            write: _Write | None = self._wait_for(pending)
        else:
            write = self._last_write()
        now_ms = self._runtime.clock.now_ms()
        for timer in result.timers:
            if isinstance(timer, SetTimer):
                self._set_timer(timer.name, timer.deadline_ms - now_ms)
            else:
                self._runtime.timers.cancel(self, timer.name)
        for answer in result.answers:
            future = self._waiting.pop(answer.token, None)
            if future is not None:
                _answer_after(write, future, answer.response)
        return write

    def append_unflushed(self, records: tuple[CoordinatorRecord, ...]) -> None:
        """Append records without requesting a flush; no request waits for them."""
        self._append(records, NO_TRANSACTION, acks=ACKS_LEADER)

    def _append(
        self,
        records: tuple[CoordinatorRecord, ...],
        transaction: Transaction,
        acks: int = ACKS_ALL,
    ) -> PendingAppend:
        encoded = [self._runtime.codec.encode(record.key, record.value) for record in records]
        batch = self._batch(encoded, transaction)
        try:
            pending = self.partition.append(batch, acks=acks, internal=True)
        except ApiError as error:
            if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                raise  # the producer was replaced: not an error
            self.fail(error)
            raise not_coordinator(error) from error
        for delta, (record, (key, value)) in enumerate(zip(records, encoded, strict=True)):
            if self._snapshots is not None:
                self._snapshots.observe(key, value, pending.first_offset + delta)
            self._replay(record, transaction[0])
        return pending

    def _batch(self, encoded: list[tuple[bytes, bytes | None]], transaction: Transaction) -> bytes:
        now_ms = self._runtime.clock.now_ms()
        return encode_batch(
            (Record(delta, now_ms, key, value) for delta, (key, value) in enumerate(encoded)),
            producer_id=transaction[0],
            producer_epoch=transaction[1],
            is_transactional=transaction is not NO_TRANSACTION,
        )

    def _replay(self, record: CoordinatorRecord, producer_id: int) -> None:
        if producer_id == NO_PRODUCER_ID:
            self.shard.replay(record)
        else:
            self._transactional_shard.replay_pending(record, producer_id)

    def _wait_for(self, pending: PendingAppend) -> _Write:
        """Hold the answers that depend on this append until it is durable."""
        write = _Write(pending)
        self._writes.append(write)
        pending.when_done(self._written)
        return write

    def complete_transaction(self, marker: TransactionMarker) -> PendingAppend:
        """Append the marker and replay it. Raises `ApiError` when the partition refuses it."""
        pending = self.partition.append_marker(**marker._asdict())
        self._transactional_shard.replay_end_transaction(marker.producer_id, marker.committed)
        self._wait_for(pending)
        return pending

    @property
    def _transactional_shard(self) -> TransactionalShard:
        assert isinstance(self.shard, TransactionalShard), "its records are in no transactions"
        return self.shard

    def _last_write(self) -> _Write | None:
        return self._writes[-1] if self._writes else None

    async def until_durable(self) -> None:
        """Wait until all that was appended so far is durable."""
        await _written(self._last_write())

    def _written(self, pending: PendingAppend) -> None:
        """Appends complete in order: answer everything up to this one."""
        if pending.error is not None:
            self.fail(pending.error)
            return
        while self._writes and self._writes[0].pending.next_offset <= pending.next_offset:
            for future, response in self._writes.popleft().answers:
                if not future.done():
                    future.set_result(response)

    def wait(self, token: object) -> asyncio.Future[Any]:
        """The future for the answer of this token."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        future.add_done_callback(lambda _: self._waiting.pop(token, None))
        return future

    def _set_timer(self, name: tuple[str, ...], delay_ms: int) -> None:
        self._runtime.timers.set(self, name, delay_ms, lambda: self._timer_fired(name))

    def _timer_fired(self, name: tuple[str, ...]) -> None:
        if not self.is_active or self.is_closed:
            return
        try:
            self.apply(self.shard.handle_timer(name, self._runtime.clock.now_ms()))
        except ApiError as error:
            logger.warning("%r: timer %s: %s", self.partition, "/".join(name), error)

    async def prune(self) -> None:
        """Delete the records before the first snapshot that counts."""
        if self._snapshots is None or self.is_closed or not self.is_active:
            return
        first_needed = self._snapshots.first(self.partition.high_watermark)
        # Later records must be durable before the deletion is.
        await self.until_durable()
        if first_needed > self.partition.log_start_offset:
            self.partition.delete_records_before(first_needed)

    # --- the end

    def fail(self, error: ApiError) -> None:
        """An append failed: this shard is stale. Load another from the log."""
        if self.is_closed:
            return
        has_moved = error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        logger.log(
            logging.INFO if has_moved else logging.ERROR,
            "%r: coordinator append failed, reloading the shard: %s",
            *(self.partition, error),
        )
        self.close(not_coordinator(error))
        self._runtime.reload(self.partition)

    def close(self, error: ApiError) -> None:
        """Fail all waiting requests."""
        self.is_closed = True
        unanswered = [future for write in self._writes for future, _ in write.answers]
        for future in (*unanswered, *self._waiting.values()):
            if not future.done():
                future.set_exception(error)
        self._writes.clear()
        self._runtime.timers.cancel_all(self)


class CoordinatorRuntime(Generic[Shard]):
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
        on_loaded: Callable[[int, Shard], None] | None = None,
        on_resigned: Callable[[int], None] | None = None,
        led_epoch: Callable[[int], int | None] = lambda index: 0,
    ) -> None:
        """`led_epoch` returns the leader epoch of a partition that this broker leads, according to
        the metadata; None for any other partition."""
        self.topic = topic
        self.codec = codec
        self.new_shard = new_shard
        self.timers = timers
        self.clock = clock
        self.on_loaded = on_loaded  # called with a loaded shard
        self._on_resigned = on_resigned  # called when a partition is led no longer
        self._led_epoch = led_epoch
        self._partitions = partitions
        self._shards: dict[int, _LoadedShard[Shard]] = {}
        self._loads: set[asyncio.Task[None]] = set()
        self._tokens = itertools.count()
        self._is_stopped = False

    # --- life cycle of shards

    def ensure_loading(self, index: int) -> None:
        """Load the shard if this broker leads its partition; in the background if it is large.

        A shard of an earlier leader epoch is loaded again: others may have written meanwhile.
        """
        if self._is_stopped:
            return
        leader_epoch = self._led_epoch(index)
        if leader_epoch is None:
            self.resign(index)
            return
        partition = self._partitions.get(self.topic, index)
        if partition is None or partition.offline_error is not None:
            return
        known = self._shards.get(index)
        if known is not None and known.partition is partition and not known.is_closed:
            if known.leader_epoch == leader_epoch:
                return
            self.resign(index)
        loaded = _LoadedShard(self, partition, leader_epoch)
        self._shards[index] = loaded
        if partition.log_start_offset >= partition.log.log_end_offset:
            loaded.activate()
        else:
            task = asyncio.get_running_loop().create_task(self._load(loaded))
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)

    async def _load(self, loaded: _LoadedShard[Shard]) -> None:
        try:
            await loaded.load()
        except Exception as error:  # whatever the error, clients must not wait for this load
            is_expected = isinstance(error, MillstreamError)
            logger.error(
                "%r: failed to load the coordinator: %s",
                loaded.partition,
                error,
                exc_info=not is_expected,
            )
            loaded.close(not_coordinator(error))

    def resign(self, index: int) -> None:
        """This broker no longer leads the partition."""
        loaded = self._shards.pop(index, None)
        if loaded is not None:
            gone = f"{self.topic}-{index} is not led by this broker any more"
            loaded.close(ApiError(ErrorCode.NOT_COORDINATOR, gone))
            if self._on_resigned is not None and not self._is_stopped:
                self._on_resigned(index)

    def lead(self, partition_count: int) -> None:
        """Load the shards that this broker leads now, and resign from all others."""
        for index in range(partition_count):
            self.ensure_loading(index)
        for index in [index for index in self._shards if index >= partition_count]:
            self.resign(index)

    def reload(self, partition: Partition) -> None:
        self._shards.pop(partition.index, None)
        if partition.offline_error is None:
            self.ensure_loading(partition.index)

    async def until_loaded(self, index: int) -> None:
        """Wait while this shard is being loaded."""
        self.ensure_loading(index)
        loaded = self._shards.get(index)
        while loaded is not None and not (loaded.is_active or loaded.is_closed) and self._loads:
            await asyncio.wait(self._loads, return_when=asyncio.FIRST_COMPLETED)

    async def all_loaded(self) -> None:
        """Wait until all shards are loaded."""
        while self._loads:
            await asyncio.wait(self._loads)

    async def stop(self) -> None:
        """Flush and answer what was written; then fail all other waiting requests."""
        self._is_stopped = True
        for task in self._loads:
            task.cancel()
        for loaded in list(self._shards.values()):
            with contextlib.suppress(ApiError):
                await loaded.until_durable()
        for index in list(self._shards):
            self.resign(index)
        await asyncio.gather(*self._loads, return_exceptions=True)

    # --- events

    async def run(
        self,
        index: int,
        event: Callable[[Shard, int], Result[Response]],
        *,
        transaction: Transaction = NO_TRANSACTION,
    ) -> Response:
        """Pass an event to the shard; returns its response once its records are durable.

        With a transaction, the records are part of it: they are pending until it is completed.
        """
        return await self._start(index, event, transaction)

    async def run_all(
        self, events: Iterable[tuple[int, Callable[[Shard, int], Result[Response]]]]
    ) -> list[Response | ApiError]:
        """Pass events to shards in one turn, so that their records share a flush."""
        started: list[asyncio.Future[Response]] = []
        for index, event in events:
            try:
                started.append(self._start(index, event))
            except ApiError as error:
                started.append(_failed(error))
        outcomes = await asyncio.gather(*started, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, ApiError):
                raise outcome
        return cast(list[Response | ApiError], outcomes)

    def _start(
        self,
        index: int,
        event: Callable[[Shard, int], Result[Response]],
        transaction: Transaction = NO_TRANSACTION,
    ) -> asyncio.Future[Response]:
        """Apply the event now; the future gets its response once it is durable."""
        loaded = self._active(index)
        result = event(loaded.shard, self.clock.now_ms())
        write = loaded.apply(result, transaction)
        assert result.response is not None, "an event without a token must be answered"
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        _answer_after(write, future, result.response)
        return future

    def complete_transaction(self, index: int, marker: TransactionMarker) -> PendingAppend:
        """Append the marker that ends a transaction, and replay it into the shard.

        The state changes at once, but no answer depends on it before the marker is durable.
        """
        return self._active(index).complete_transaction(marker)

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
                future.exception()  # the same error; raised to the caller here
            raise
        if result.response is not None:
            _answer_after(write, future, result.response)
        return await future

    async def read(self, index: int, question: Callable[[Shard], Response]) -> Response:
        """Query the shard; the answer waits until the state it depends on is durable."""
        loaded = self._active(index)
        answer = question(loaded.shard)
        await loaded.until_durable()
        return answer

    def run_unflushed(self, index: int, event: Callable[[Shard, int], Result[Any]]) -> None:
        """Pass the shard an event without waiting for its records.

        They become durable with a later flush. Raises `ApiError` if the shard is not loaded.
        """
        loaded = self._active(index)
        loaded.append_unflushed(event(loaded.shard, self.clock.now_ms()).records)

    def tell_all(self, event: Callable[[Shard, int], Result[Any]]) -> None:
        """Pass an event to every loaded shard, without waiting."""
        for loaded in list(self._shards.values()):
            if not loaded.is_active or loaded.is_closed:
                continue
            try:
                loaded.apply(event(loaded.shard, self.clock.now_ms()))
            except ApiError as error:
                logger.warning("%r: %s", loaded.partition, error)

    async def prune(self) -> None:
        """Delete what newer snapshots have made obsolete, in every partition."""
        for loaded in list(self._shards.values()):
            try:
                await loaded.prune()
            except ApiError as error:
                logger.warning(
                    "%r: failed to delete superseded records: %s", loaded.partition, error
                )

    def active_shards(self) -> list[Shard]:
        """The loaded shards, for queries that may see state that is not durable (lag, metrics)."""
        return [loaded.shard for loaded in self._shards.values() if loaded.is_active]

    def peek(self, index: int) -> Shard | None:
        """The shard, if it is loaded."""
        loaded = self._shards.get(index)
        if loaded is None or loaded.is_closed or not loaded.is_active:
            return None
        return loaded.shard

    def shard(self, index: int) -> Shard:
        """The shard itself, for synchronous queries. Raises `ApiError` if it is not loaded."""
        return self._active(index).shard

    def _active(self, index: int) -> _LoadedShard[Shard]:
        self.ensure_loading(index)
        loaded = self._shards.get(index)
        if loaded is None or loaded.is_closed:
            raise ApiError(
                ErrorCode.NOT_COORDINATOR, f"{self.topic}-{index} is not led by this broker."
            )
        if not loaded.is_active:
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                f"{self.topic}-{index} is still loading; retry.",
            )
        return loaded


def not_coordinator(cause: Exception) -> ApiError:
    """The error after a coordinator failed to write: clients look it up again."""
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


def _failed(error: ApiError) -> asyncio.Future[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_exception(error)
    return future


class _Visibility:
    """Watches a partition until everything below the offset is visible, or it fails."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self.done = asyncio.Event()

    def partition_changed(self, partition: Partition) -> None:
        if partition.high_watermark >= self._offset or partition.offline_error is not None:
            self.done.set()


async def _until_visible(partition: Partition, offset: int) -> None:
    """Wait until everything below the offset is flushed."""
    visibility = _Visibility(offset)
    partition.watch(visibility)
    try:
        visibility.partition_changed(partition)
        await visibility.done.wait()
    finally:
        partition.unwatch(visibility)


async def _read(partition: Partition, offset: int) -> bytes | bytearray:
    try:
        return partition.read(offset, max_bytes=LOAD_CHUNK_BYTES)
    except NotCached:
        return await asyncio.to_thread(
            partition.read, offset, max_bytes=LOAD_CHUNK_BYTES, may_block=True
        )
