"""The shell around shards, with a counter for a shard and a real partition under it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.coordinator_shell import CoordinatorShell
from millstream.broker.server import BrokerServer
from millstream.broker.timers import Timers
from millstream.broker.topics import NewTopic
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
from millstream.errors import ApiError, ErrorCode
from tests.broker.serving import serving


@dataclass(frozen=True)
class Name:
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
async def shell(directory: Path, **settings: Any) -> Any:
    """A broker with a topic of two partitions, and a shell of counters on it."""
    async with serving(directory, **settings) as server:
        await server.topics.create([NewTopic("counters", partition_count=2)])
        made = shell_on(server)
        yield server, made
        await made.stop()


def shell_on(server: BrokerServer) -> CoordinatorShell[Counters]:
    return CoordinatorShell(
        "counters",
        CODEC,
        Counters,
        partitions=server.partitions,
        timers=Timers(server.clock),
        clock=server.clock,
    )


def test_event_is_answered_when_its_records_are_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shell(tmp_path) as (server, counters):
            assert await counters.run(0, add("a")) == 1
            partition = server.partitions.get("counters", 0)
            assert partition.high_watermark == partition.log.flushed_offset == 1

    asyncio.run(scenario())


def test_answer_without_records_waits_for_earlier_records(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shell(tmp_path) as (server, counters):
            write = asyncio.ensure_future(counters.run(0, add("a")))
            await asyncio.sleep(0)
            count = await counters.read(0, lambda shard: shard.counts["a"])
            assert count == 1
            assert server.partitions.get("counters", 0).high_watermark == 1
            assert await write == 1

    asyncio.run(scenario())


def test_shard_is_loaded_from_its_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shell(tmp_path) as (server, counters):
            for _ in range(5):
                await counters.run(0, add("a"))
            await counters.run(0, add("b"))
            other = shell_on(server)
            other.lead(0)
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
        async with shell(tmp_path) as (_, counters):
            assert await counters.read(1, lambda shard: shard.counts) == {}

    asyncio.run(scenario())


def test_partition_that_is_not_here_is_coordinated_elsewhere(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shell(tmp_path) as (_, counters):
            with pytest.raises(ApiError) as error:
                await counters.run(9, add("a"))
            assert error.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())


def test_waiting_request_is_answered_by_a_later_event(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shell(tmp_path) as (_, counters):
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
    partition.log.update_config(
        replace(partition.log.config, min_insync_replicas=2 if refuse else 1)
    )


def test_failed_append_reloads_the_shard_and_frees_those_who_wait(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shell(tmp_path) as (server, counters):
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


def test_failed_flush_frees_those_whose_records_it_should_have_covered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shell(tmp_path) as (server, counters):
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
        async with shell(tmp_path) as (_, counters):

            def set_timer(shard: Counters, now_ms: int) -> Result[bool]:
                return Result((), True, timers=(SetTimer(("soon",), now_ms + 1),))

            assert await counters.run(0, set_timer)
            fired = await counters.read(0, lambda shard: shard.fired)
            await fired.wait()
            assert await counters.read(0, lambda shard: shard.counts) == {"timer": 1}

    asyncio.run(scenario())


def test_event_for_all_reaches_every_shard(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shell(tmp_path) as (_, counters):
            counters.lead(0)
            counters.lead(1)
            counters.tell_all(lambda shard, now_ms: shard.add("all", now_ms))
            assert [shard.counts for shard in counters.active_shards()] == [{"all": 1}] * 2

    asyncio.run(scenario())


def test_stopping_lets_writes_be_answered(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with shell(tmp_path) as (_, counters):
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
        async with shell(tmp_path) as (_, counters):
            waiting = asyncio.ensure_future(
                counters.run_waiting(0, lambda shard, token, now: shard.wait(token, now))
            )
            await asyncio.sleep(0)
            counters.resign(0)
            with pytest.raises(ApiError) as error:
                await waiting
            assert error.value.code is ErrorCode.NOT_COORDINATOR

    asyncio.run(scenario())
