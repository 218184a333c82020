"""The runtime around shards, with a counter for a shard and a real partition under it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.coordinators.runtime import CoordinatorRuntime
from millstream.broker.coordinators.timers import Timers
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.replicas.pending import PendingAppend
from millstream.broker.server import BrokerServer
from millstream.coordination.record_codec import (
    INT64,
    STRING,
    Field,
    RecordCodec,
    RecordType,
    Schema,
)
from millstream.coordination.result import (
    Answer,
    CoordinatorRecord,
    Result,
    SetTimer,
)
from millstream.coordination.transactions.marker import TransactionMarker
from millstream.errors import ApiError, ErrorCode
from tests.broker.serving import serving
from tests.peers.patience import PATIENCE_SECONDS


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class NameOfUpdate:
    name: str


@dataclass(frozen=True)
class Count:
    count: int


CODEC = RecordCodec(
    (
        RecordType(
            0, Schema(Name, (Field("name", STRING),)), Schema(Count, (Field("count", INT64),))
        ),
    ),
    lambda value: 0,
)


class Counters:
    """A shard that counts: every event is a record, every state its last record."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.replayed = 0
        self.waiting: list[object] = []
        self.fired: asyncio.Event = asyncio.Event()
        self.pending: dict[int, list[CoordinatorRecord]] = {}

    def replay_pending(self, record: CoordinatorRecord, producer_id: int) -> None:
        self.pending.setdefault(producer_id, []).append(record)

    def replay_end_transaction(self, producer_id: int, committed: bool) -> None:
        for record in self.pending.pop(producer_id, []):
            if committed:
                self.replay(record)

    def replay(self, record: CoordinatorRecord) -> None:
        self.replayed += 1
        if record.value is None:
            self.counts.pop(record.key.name, None)
        else:
            self.counts[record.key.name] = record.value.count

    def loaded(self, now_ms: int) -> Result[None]:
        return Result()

    def handle_timer(self, name: tuple[str, ...], now_ms: int) -> Result[None]:
        self.fired.set()
        return Result((CoordinatorRecord(Name("timer"), Count(1)),))

    def add(self, name: str, now_ms: int) -> Result[int]:
        count = self.counts.get(name, 0) + 1
        return Result((CoordinatorRecord(Name(name), Count(count)),), count)

    def wait(self, token: object, now_ms: int) -> Result[None]:
        self.waiting.append(token)
        return Result()

    def release(self, now_ms: int) -> Result[int]:
        answers = tuple(Answer(token, self.counts.get("a", 0)) for token in self.waiting)
        return Result((CoordinatorRecord(Name("a"), Count(7)),), len(answers), answers)


def add(name: str) -> Callable[[Counters, int], Result[int]]:
    return lambda shard, now_ms: shard.add(name, now_ms)


@asynccontextmanager
async def runtime(directory: Path, **settings: Any) -> Any:
    """A broker with a topic of two partitions, and a runtime of counters on it."""
    async with serving(directory, **settings) as server:
        await server.topics.create([NewTopic("counters", partition_count=2)])
        made = runtime_on(server)
        yield server, made
        await made.stop()


def runtime_on(server: BrokerServer, codec: RecordCodec = CODEC) -> CoordinatorRuntime[Counters]:
    return CoordinatorRuntime(
        "counters",
        codec,
        Counters,
        partitions=server.partitions,
        timers=Timers(server.clock),
        clock=server.clock,
    )


def test_what_nobody_waits_for_is_durable_with_what_somebody_waits_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            await counters.run(0, add("a"))
            flushes = server.flusher.flush_count
            counters.run_unflushed(0, add("a"))
            await asyncio.sleep(0)
            assert server.flusher.flush_count == flushes, "no flush is made for it"
            assert counters.shard(0).counts == {"a": 2}
            assert await counters.run(0, add("a")) == 3
            assert server.partitions.get("counters", 0).log.flushed_offset == 3

    asyncio.run(scenario())


def test_note_answers_nobody_who_waits_for_an_earlier_record(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            answered = asyncio.ensure_future(counters.run(0, add("a")))
            await asyncio.sleep(0)
            counters.run_unflushed(0, add("a"))
            log = server.partitions.get("counters", 0).log
            answered.add_done_callback(lambda _: flushed.append(log.flushed_offset))
            flushed: list[int] = []
            assert await answered == 1
            await asyncio.sleep(0)
            assert flushed == [2]

    asyncio.run(scenario())


def test_event_is_answered_when_its_records_are_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            assert await counters.run(0, add("a")) == 1
            partition = server.partitions.get("counters", 0)
            assert partition.high_watermark == partition.log.flushed_offset == 1

    asyncio.run(scenario())


def test_answer_without_records_waits_for_earlier_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            write = asyncio.ensure_future(counters.run(0, add("a")))
            await asyncio.sleep(0)
            count = await counters.read(0, lambda shard: shard.counts["a"])
            assert count == 1
            assert server.partitions.get("counters", 0).high_watermark == 1
            assert await write == 1

    asyncio.run(scenario())


def test_shard_is_loaded_from_its_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            for _ in range(5):
                await counters.run(0, add("a"))
            await counters.run(0, add("b"))
            other = runtime_on(server)
            other.ensure_loading(0)
            with pytest.raises(ApiError) as error:
                await other.run(0, add("a"))
            assert error.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await other.all_loaded()
            assert await other.read(0, lambda shard: dict(shard.counts)) == {"a": 5, "b": 1}
            # What compaction would have dropped was never decoded.
            assert await other.read(0, lambda shard: shard.replayed) == 2
            await other.stop()

    asyncio.run(scenario())


def test_empty_partition_is_loaded_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (_, counters):
            assert await counters.read(1, lambda shard: shard.counts) == {}

    asyncio.run(scenario())


def test_partition_that_is_not_here_is_coordinated_elsewhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (_, counters):
            with pytest.raises(ApiError) as error:
                await counters.run(9, add("a"))
            assert error.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())


def test_waiting_request_is_answered_by_a_later_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (_, counters):
            waiting = [
                asyncio.ensure_future(
                    counters.run_waiting(0, lambda shard, token, now: shard.wait(token, now))
                )
                for _ in range(2)
            ]
            await asyncio.sleep(0)
            assert not any(it.done() for it in waiting)
            assert await counters.run(0, lambda shard, now: shard.release(now)) == 2
            assert await asyncio.gather(*waiting) == [0, 0]

    asyncio.run(scenario())


async def refuse_appends(server: BrokerServer, refuse: bool) -> None:
    """Ask for more in-sync replicas than there are: appends with acks=all are refused."""
    partition = server.partitions.get("counters", 0)
    assert partition is not None
    partition.log.update_config(replace(partition.log.config, min_insync_replicas=2))
    partition.leadership.set_in_sync(frozenset(), replica_count=2 if refuse else 1)


def test_failed_append_reloads_the_shard_and_frees_those_who_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            await counters.run(0, add("a"))
            waiting = asyncio.ensure_future(
                counters.run_waiting(0, lambda shard, token, now: shard.wait(token, now))
            )
            await asyncio.sleep(0)
            await refuse_appends(server, True)
            with pytest.raises(ApiError) as error:
                await counters.run(0, add("a"))
            assert error.value.code is ErrorCode.NOT_COORDINATOR
            with pytest.raises(ApiError) as error:
                await waiting
            assert error.value.code is ErrorCode.NOT_COORDINATOR
            await refuse_appends(server, False)
            await counters.all_loaded()
            assert await counters.read(0, lambda shard: shard.counts) == {"a": 1}
            assert await counters.run(0, add("a")) == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("before", [[], ["z"]])
def test_shard_loaded_anew_has_what_was_on_its_way_to_the_disk(
    tmp_path: Path, before: list[str]
) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            for name in before:
                await counters.run(0, add(name))
            server.flusher.use_thread()  # so that the load could be done before the flush
            written = asyncio.ensure_future(counters.run(0, add("a")))
            await asyncio.sleep(0)
            partition = server.partitions.get("counters", 0)
            assert partition.high_watermark < partition.log.log_end_offset
            await refuse_appends(server, True)
            with pytest.raises(ApiError):
                await counters.run(0, add("b"))
            with pytest.raises(ApiError):
                await written
            await refuse_appends(server, False)
            await counters.all_loaded()
            assert counters.shard(0).counts == dict.fromkeys([*before, "a"], 1)

    asyncio.run(scenario())


def test_load_waits_no_longer_when_the_partition_goes_offline(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            written = asyncio.ensure_future(counters.run(0, add("a")))
            await asyncio.sleep(0)
            other = runtime_on(server)
            other.ensure_loading(0)
            failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
            server.partitions.get("counters", 0).go_offline(failure)
            await other.all_loaded()
            with pytest.raises(ApiError) as error:
                other.shard(0)
            assert error.value.code is ErrorCode.NOT_COORDINATOR
            with pytest.raises(ApiError):
                await written

    asyncio.run(scenario())


def test_shard_that_chokes_on_a_record_is_not_said_to_be_loading_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Choking(Counters):
        def replay(self, record: CoordinatorRecord) -> None:
            raise ValueError("an odd record")

    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            await counters.run(0, add("a"))
            other = runtime_on(server)
            other.new_shard = Choking
            other.ensure_loading(0)
            await asyncio.wait_for(other.until_loaded(0), PATIENCE_SECONDS)
            other.new_shard = Counters
            with pytest.raises(ApiError):
                other.shard(0)  # another attempt begins
            await other.all_loaded()
            assert other.shard(0).counts == {"a": 1}

    asyncio.run(scenario())
    assert "failed to load the coordinator: an odd record" in caplog.text


def test_failed_flush_frees_those_whose_records_it_should_have_covered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            await counters.run(0, add("a"))
            write = asyncio.ensure_future(counters.run(0, add("a")))
            await asyncio.sleep(0)
            failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
            server.partitions.get("counters", 0).go_offline(failure)
            with pytest.raises(ApiError) as error:
                await write
            assert error.value.code is ErrorCode.NOT_COORDINATOR
            with pytest.raises(ApiError) as error:
                await counters.run(0, add("a"))
            assert error.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())


def test_timer_of_a_shard_fires_and_writes(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (_, counters):

            def set_timer(shard: Counters, now_ms: int) -> Result[bool]:
                return Result((), True, timers=(SetTimer(("soon",), now_ms + 1),))

            assert await counters.run(0, set_timer)
            fired = await counters.read(0, lambda shard: shard.fired)
            await fired.wait()
            assert await counters.read(0, lambda shard: shard.counts) == {"timer": 1}

    asyncio.run(scenario())


def test_event_for_all_reaches_every_shard(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (_, counters):
            counters.ensure_loading(0)
            counters.ensure_loading(1)
            counters.tell_all(lambda shard, now_ms: shard.add("all", now_ms))
            assert [shard.counts for shard in counters.active_shards()] == [{"all": 1}] * 2

    asyncio.run(scenario())


def test_stopping_lets_writes_be_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (_, counters):
            writes = [asyncio.ensure_future(counters.run(0, add(name))) for name in "abc"]
            waiting = asyncio.ensure_future(
                counters.run_waiting(0, lambda shard, token, now: shard.wait(token, now))
            )
            await asyncio.sleep(0)
            await counters.stop()
            assert await asyncio.gather(*writes) == [1, 1, 1]
            with pytest.raises(ApiError):
                await waiting

    asyncio.run(scenario())


def test_resigned_shard_frees_those_who_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (_, counters):
            waiting = asyncio.ensure_future(
                counters.run_waiting(0, lambda shard, token, now: shard.wait(token, now))
            )
            await asyncio.sleep(0)
            counters.resign(0)
            with pytest.raises(ApiError) as error:
                await waiting
            assert error.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())


# --- transactions

PRODUCER = (7, 0)
COMMIT = TransactionMarker(*PRODUCER, coordinator_epoch=0, committed=True, transaction_version=1)
ABORT = COMMIT._replace(committed=False)


def counts(shard: Counters) -> dict[str, int]:
    return dict(shard.counts)


@pytest.mark.parametrize(("marker", "expected"), [(COMMIT, {"a": 1}), (ABORT, {})])
def test_records_of_a_transaction_are_pending_until_its_marker(
    tmp_path: Path, marker: TransactionMarker, expected: dict[str, int]
) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            assert await counters.run(0, add("a"), transaction=PRODUCER) == 1
            assert await counters.read(0, counts) == {}
            partition = server.partitions.get("counters", 0)
            assert partition.is_in_transaction(*PRODUCER)
            pending = await counters.complete_transaction(0, marker)
            assert (pending.first_offset, pending.next_offset) == (1, 2)
            assert not partition.is_in_transaction(*PRODUCER)
            assert await counters.read(0, counts) == expected
            other = runtime_on(server)
            other.ensure_loading(0)
            await other.all_loaded()
            assert await other.read(0, counts) == expected
            await other.stop()

    asyncio.run(scenario())


def test_open_transaction_is_taken_up_by_a_reload(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            await counters.run(0, add("b"))
            await counters.run(0, add("a"), transaction=PRODUCER)
            other = runtime_on(server)
            other.ensure_loading(0)
            with pytest.raises(ApiError) as error:
                other.complete_transaction(0, COMMIT)
            assert error.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            await other.all_loaded()
            assert await other.read(0, counts) == {"b": 1}
            await other.complete_transaction(0, COMMIT)
            assert await other.read(0, counts) == {"b": 1, "a": 1}
            await other.stop()

    asyncio.run(scenario())


def test_nobody_hears_of_a_transactions_end_before_it_is_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            await counters.run(0, add("a"), transaction=PRODUCER)
            partition = server.partitions.get("counters", 0)
            pending = counters.complete_transaction(0, COMMIT)
            assert not pending.is_done
            assert await counters.read(0, counts) == {"a": 1}
            assert partition.log.flushed_offset == pending.next_offset
            assert pending.is_done

    asyncio.run(scenario())


def test_marker_that_cannot_be_flushed_fails_with_those_who_were_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            await counters.run(0, add("a"), transaction=PRODUCER)
            markers: list[PendingAppend] = []

            async def end_and_read() -> dict[str, int]:
                markers.append(counters.complete_transaction(0, COMMIT))
                return await counters.read(0, counts)  # type: ignore[no-any-return]

            reading = asyncio.ensure_future(end_and_read())
            await asyncio.sleep(0)
            failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
            server.partitions.get("counters", 0).go_offline(failure)
            with pytest.raises(ApiError):
                await markers[0]
            with pytest.raises(ApiError) as error:
                await reading
            assert error.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())


def test_replaced_producer_and_coordinator_are_refused_and_change_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (_, counters):
            await counters.run(0, add("b"))
            newer = (7, 5)
            await counters.run(0, add("a"), transaction=newer)
            with pytest.raises(ApiError) as error:
                await counters.run(0, add("a"), transaction=PRODUCER)
            assert error.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
            with pytest.raises(ApiError) as error:
                counters.complete_transaction(0, COMMIT)
            assert error.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
            # The shard was not loaded anew for it.
            assert await counters.read(0, counts) == {"b": 1}
            assert len((await counters.read(0, lambda shard: shard.pending))[7]) == 1

    asyncio.run(scenario())


# --- more


def test_loaded_shard_is_told_of(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            await counters.run(0, add("a"))
            loaded: list[tuple[int, dict[str, int]]] = []
            other = runtime_on(server)
            other.on_loaded = lambda index, shard: loaded.append((index, dict(shard.counts)))
            for index in (0, 1):
                other.ensure_loading(index)
                await other.until_loaded(index)
            assert loaded == [(0, {"a": 1}), (1, {})]
            await other.stop()

    asyncio.run(scenario())


def test_events_of_one_turn_succeed_or_fail_each_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with runtime(tmp_path) as (server, counters):
            events = [(0, add("a")), (9, add("a")), (1, add("b")), (0, add("a"))]
            outcomes = await counters.run_all(events)
            assert [outcomes[0], outcomes[2], outcomes[3]] == [1, 1, 2]
            assert isinstance(outcomes[1], ApiError)
            assert outcomes[1].code is ErrorCode.NOT_COORDINATOR
            failing = asyncio.ensure_future(counters.run_all([(1, add("b")), (0, add("a"))]))
            await asyncio.sleep(0)
            failure = ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is gone")
            server.partitions.get("counters", 0).go_offline(failure)
            assert [isinstance(it, ApiError) for it in await failing] == [False, True]

    asyncio.run(scenario())


def test_what_stands_before_the_oldest_last_snapshot_is_pruned(tmp_path: Path) -> None:
    """With names that begin with an update, as far as the codec is concerned."""
    name, count = Schema(Name, (Field("name", STRING),)), Schema(Count, (Field("count", INT64),))
    update = Schema(NameOfUpdate, (Field("name", STRING),))
    codec = RecordCodec(
        (RecordType(0, name, count), RecordType(1, update, count, is_update=True)), lambda _: 0
    )

    def write(key: Any, value: int | None) -> Callable[[Counters, int], Result[bool]]:
        record = CoordinatorRecord(key, Count(value) if value is not None else None)
        return lambda shard, now_ms: Result((record,), True)

    async def scenario() -> None:
        async with runtime(tmp_path) as (server, _):
            made = runtime_on(server, codec)
            for key, value in ((Name("a"), 1), (Name("b"), 2), (NameOfUpdate("a"), 3)):
                await made.run(0, write(key, value))
            partition = server.partitions.get("counters", 0)
            await made.prune()
            assert partition.log_start_offset == 0
            snapshot = asyncio.ensure_future(made.run(0, write(Name("a"), 4)))
            await asyncio.sleep(0)
            await made.prune()  # waits until the snapshot is durable
            assert partition.log.flushed_offset == 4
            assert partition.log_start_offset == 1
            await snapshot
            await made.run(0, write(Name("b"), None))
            await made.prune()
            assert partition.log_start_offset == 3
            other = runtime_on(server, codec)
            other.ensure_loading(0)
            await other.all_loaded()
            assert await other.read(0, counts) == {"a": 4}
            await other.stop()
            await made.stop()

    asyncio.run(scenario())
