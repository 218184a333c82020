"""A share partition's leader, in a real broker (retries, dead letters, restarts) and by itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import ACKS_LEADER
from millstream.broker.server import BrokerServer
from millstream.broker.sharing.dead_letters import DeadLetter
from millstream.broker.sharing.leader import ShareLeader
from millstream.broker.sharing.reading import read_log
from millstream.broker.tasks import Tasks
from millstream.config.broker import BrokerConfig
from millstream.coordination.share_state import (
    NO_START_OFFSET,
    DeliveryState,
    SharePartitionKey,
    ShareState,
    StateBatch,
)
from millstream.coordination.sharing.acquisition import Wish
from millstream.errors import ApiError, ErrorCode
from millstream.storage.lookup import TimestampOffset
from tests.broker.serving import serving
from tests.broker.sharing.calls import (
    ACCEPT,
    REJECT,
    RELEASE,
    acquired,
    configure,
    joined,
    partition_of,
    produce,
    run,
)
from tests.broker.sharing.leading import Leader

ACKNOWLEDGED = DeliveryState.ACKNOWLEDGED
AVAILABLE = DeliveryState.AVAILABLE


# Delayed retry


def test_released_record_waits_while_100_000_flow_past_it(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        settings = {"share.retry.backoff.ms": "60000", "share.retry.backoff.max.ms": "60000"}
        await configure(server, "g", settings)
        for _ in range(100):
            await produce(server, 1_000)
        async with joined(server, topic_id) as member:
            assert acquired(await member.fetch(max_wait=60_000, max_records=1)) == [(0, 0, 1)]
            acks = [(0, 0, [RELEASE])]
            seen = 0
            while seen < 100_000:
                response = await member.fetch(acks=acks, max_wait=60_000, max_records=2_000)
                assert partition_of(response).acknowledge_error_code == 0
                acks = [(first, last, [ACCEPT]) for first, last, _ in acquired(response)]
                seen += sum(last - first + 1 for first, last, _ in acks)
            await member.acknowledge(*acks)
            leader = server.services.share_partitions.get("g", topic_id, 0)
            assert leader is not None
            assert leader.window is not None
            assert len(leader.window.runs) == 2
            batches = server.services.share_partitions.describe(SharePartitionKey("g", topic_id, 0))
            assert batches[0][:4] == (0, 0, AVAILABLE, 1)
            assert batches[0].due_ms > server.clock.now_ms()
            state = await server.coordinators.share_state.read(leader.key, 0)
            assert [it[:3] for it in state.batches] == [
                (0, 0, AVAILABLE),
                (1, seen, ACKNOWLEDGED),
            ]

    run(tmp_path, scenario, records=1)


def test_delayed_record_comes_when_it_is_due(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        await configure(server, "g", {"share.retry.backoff.ms": "2000"})
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=60_000)
            await member.acknowledge((0, 0, [RELEASE]), (1, 9, [ACCEPT]))
            assert acquired(await member.fetch()) == []
            assert acquired(await member.fetch(max_wait=60_000)) == [(0, 0, 2)]

    run(tmp_path, scenario)


def test_due_time_survives_a_restart(tmp_path: Path) -> None:
    async def release(server: BrokerServer, topic_id: UUID) -> None:
        await configure(server, "g", {"share.retry.backoff.ms": "3600000"})
        await configure(server, "g", {"share.retry.backoff.max.ms": "3600000"})
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=60_000)
            await member.acknowledge((3, 3, [RELEASE]), (4, 9, [ACCEPT]))
            await member.acknowledge((0, 2, [ACCEPT]))

    run(tmp_path, release)

    async def resume() -> None:
        async with serving(tmp_path) as server:
            topic_id = server.metadata.image.topics["t"].id
            async with joined(server, topic_id) as member:
                await produce(server, 1)
                assert acquired(await member.fetch(max_wait=60_000)) == [(10, 10, 1)]
                key = SharePartitionKey("g", topic_id, 0)
                (delayed,) = [
                    it for it in server.services.share_partitions.describe(key) if it.due_ms
                ]
                assert delayed[:2] == (3, 3)
                assert 3_000_000 < delayed.due_ms - server.clock.now_ms() <= 3_600_000

    asyncio.run(resume())


def test_due_time_is_never_later_than_the_longest_back_off(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        settings = {"share.retry.backoff.ms": "1000", "share.retry.backoff.max.ms": "60000"}
        await configure(server, "g", settings)
        key = SharePartitionKey("g", topic_id, 0)
        years_ahead_ms = server.clock.now_ms() + 10**11  # by a clock that was wrong
        await server.coordinators.share_state.write(
            key,
            state_epoch=0,
            leader_epoch=0,
            start_offset=0,
            delivery_complete_count=0,
            batches=[StateBatch(0, 0, AVAILABLE, 1, years_ahead_ms)],
        )
        async with joined(server, topic_id) as member:
            assert acquired(await member.fetch(max_wait=60_000)) == [(1, 9, 1)]
            delayed = server.services.share_partitions.describe(key)[0]
            assert 0 < delayed.due_ms <= server.clock.now_ms() + 60_000

    run(tmp_path, scenario)


# Restarts


def test_state_is_as_it_was_after_a_restart(tmp_path: Path) -> None:
    async def first_life(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=60_000)
            await member.acknowledge((0, 1, [ACCEPT]), (4, 6, [ACCEPT, RELEASE, REJECT]))
            assert acquired(await member.fetch(max_wait=60_000)) == [(5, 5, 2)]

    run(tmp_path, first_life)

    async def second_life() -> None:
        async with serving(tmp_path) as server:
            topic_id = server.metadata.image.topics["t"].id
            async with joined(server, topic_id) as member:
                again = acquired(await member.fetch(max_wait=60_000))
        offsets = {
            offset: count for first, last, count in again for offset in range(first, last + 1)
        }
        assert set(offsets) == {2, 3, 5, 7, 8, 9}
        assert offsets[5] >= 2  # it was persisted as delivered once

    asyncio.run(second_life())


@pytest.mark.parametrize("is_first_load_in_vain", [False, True])
def test_records_that_take_the_place_of_lost_ones_are_delivered(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_first_load_in_vain: bool,
) -> None:
    async def first_life(server: BrokerServer, topic_id: UUID) -> None:
        await produce(server, 10)
        async with joined(server, topic_id) as member:
            assert acquired(await member.fetch(max_wait=60_000)) == [(0, 19, 1)]
            await member.acknowledge((0, 19, [ACCEPT]))

    run(tmp_path, first_life)
    (log,) = (tmp_path / "t-0").glob("*.log")
    os.truncate(log, log.stat().st_size // 2)  # a power cut before the flush
    (tmp_path / ".kafka_cleanshutdown").unlink()
    if is_first_load_in_vain:
        fail_once(monkeypatch, "__share_group_state")

    async def second_life() -> None:
        async with serving(tmp_path) as server:
            assert "but the log ends at 10" in caplog.text, "it is known before anybody may write"
            topic_id = server.metadata.image.topics["t"].id
            for _ in range(3):  # before any member comes
                await produce(server, 10)
            async with joined(server, topic_id) as member:
                assert acquired(await member.fetch(max_wait=60_000)) == [(10, 39, 1)]

    asyncio.run(second_life())


def fail_once(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """Refuse the next batch that a coordinator appends there, as a full disk does."""
    append = Partition.append
    refused: list[str] = []

    def append_or_fail(self: Partition, *arguments: Any, **options: Any) -> Any:
        if self.topic == topic and not refused:
            refused.append(topic)
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left")
        return append(self, *arguments, **options)

    monkeypatch.setattr(Partition, "append", append_or_fail)


# The persister fails


class BrokenPersister:
    """Reads as the real one does, and refuses to write."""

    def __init__(self, real: Any, error: ApiError) -> None:
        self._real = real
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def write(self, *_: Any, **__: Any) -> None:
        raise self._error


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_acknowledgement_that_cannot_be_written_leaves_the_records_held(
    tmp_path: Path, cause: ErrorCode, told: ErrorCode
) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        real = server.coordinators.share_state
        async with joined(server, topic_id, "a") as a, joined(server, topic_id, "b") as b:
            await a.fetch(max_wait=60_000)
            broken: Any = BrokenPersister(real, ApiError(cause, "broken"))
            leader = server.services.share_partitions.get("g", topic_id, 0)
            assert leader is not None
            leader._persister = broken
            answer = await a.acknowledge((0, 9, [ACCEPT]))
            assert partition_of(answer).error_code == told
            assert acquired(await b.fetch()) == []
            leader._persister = real
            answer = await a.acknowledge((0, 9, [ACCEPT]))
            assert partition_of(answer).error_code == 0

    run(tmp_path, scenario)


def test_many_members_acknowledgements_share_a_write(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        for _ in range(9):
            await produce(server, 10)
        writes: list[tuple[StateBatch, ...]] = []
        real = server.coordinators.share_state

        class Counting:
            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

            async def write(self, *args: Any, **fields: Any) -> None:
                writes.append(tuple(fields["batches"]))
                await real.write(*args, **fields)

        counting: Any = Counting()
        server.services.share_partitions._persister = counting
        async with joined(server, topic_id) as first:
            await first.fetch(max_wait=60_000, max_records=1)
            leader = server.services.share_partitions.get("g", topic_id, 0)
            assert leader is not None
            done = asyncio.get_running_loop().create_future()
            for offset in range(9):
                leader.acknowledge("a", [(offset, offset, ACCEPT)], lambda _: None)
            leader.acknowledge("a", [(9, 9, ACCEPT)], done.set_result)
            assert await done is None
        assert len(writes) == 1

    run(tmp_path, scenario)


# Dead letters


def test_rejected_record_goes_to_the_dead_letters_before_it_is_archived(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        await configure(server, "g", {"errors.deadletterqueue.topic.name": "dlq.g"})
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=60_000)
            answer = await member.acknowledge((0, 1, [REJECT]), (2, 9, [ACCEPT]))
            assert partition_of(answer).error_code == 0
            await produce(server, 1)
            assert acquired(await member.fetch(max_wait=60_000)) == [(10, 10, 1)]
            leader = server.services.share_partitions.get("g", topic_id, 0)
            assert leader is not None
            assert leader.window is not None
            while leader.window.start_offset < 10:
                await asyncio.sleep(0.01)
        letters = server.partitions.find("dlq.g", 0)
        assert letters.high_watermark == 2

    run(tmp_path, scenario, errors_deadletterqueue_auto_create_topics_enable=True)


def test_records_wait_while_dead_letters_cannot_be_written_and_block_nobody(
    tmp_path: Path,
) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        await configure(server, "g", {"errors.deadletterqueue.topic.name": "not-allowed"})
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=60_000)
            answer = await member.acknowledge((0, 0, [REJECT]), (1, 9, [ACCEPT]))
            assert partition_of(answer).error_code == 0
            await produce(server, 5)
            assert acquired(await member.fetch(max_wait=60_000)) == [(10, 14, 1)]
            key = SharePartitionKey("g", topic_id, 0)
            state = await server.coordinators.share_state.read(key, 0)
            assert state.batches[0] == StateBatch(0, 0, DeliveryState.ARCHIVING, 1)
            assert state.start_offset == 0

    run(tmp_path, scenario)


# The end


def test_idle_group_is_forgotten_once_everything_is_written(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=60_000)
            assert server.services.share_partitions.get("g", topic_id, 0) is not None
        while server.services.share_partitions.get("g", topic_id, 0) is not None:
            await asyncio.sleep(0.01)
        state = await server.coordinators.share_state.read(SharePartitionKey("g", topic_id, 0), 0)
        assert state.batches == (StateBatch(0, 9, AVAILABLE, 1),)

    run(tmp_path, scenario)


def test_idle_group_is_forgotten_even_while_it_is_loaded(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        real = server.coordinators.share_state
        may_load = asyncio.Event()

        class Slow:
            def __getattr__(self, name: str) -> Any:
                return getattr(real, name)

            async def read(self, *args: Any) -> Any:
                await may_load.wait()
                return await real.read(*args)

        slow: Any = Slow()
        server.services.share_partitions._persister = slow
        async with joined(server, topic_id) as member:
            member.send_fetch(max_wait=30_000)
            while (leader := server.services.share_partitions.get("g", topic_id, 0)) is None:
                await asyncio.sleep(0.01)
        while len(server.services.share_partitions.sessions):
            await asyncio.sleep(0.01)
        may_load.set()
        assert await real.read(leader.key, 0)
        assert server.services.share_partitions.get("g", topic_id, 0) is None

    run(tmp_path, scenario)


def test_group_goes_on_from_the_log_s_end_where_the_log_lost_records(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        key = SharePartitionKey("h", topic_id, 0)
        await server.coordinators.share_state.initialize(key, 0, 500)
        async with joined(server, topic_id, group="h") as member:
            assert acquired(await member.fetch()) == []
            await produce(server, 5)
            assert acquired(await member.fetch(max_wait=60_000)) == [(10, 14, 1)]
            await member.acknowledge((10, 11, [ACCEPT]), (12, 12, [RELEASE]))
            state = await server.coordinators.share_state.read(key, 0)
            assert state.start_offset == 12
            assert state.batches == (StateBatch(12, 12, AVAILABLE, 1),)

    run(tmp_path, scenario)


def test_recreated_state_is_not_changed_by_acknowledgements_of_the_deleted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One acknowledgement is being written, another one waits behind it."""

    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        persister = server.coordinators.share_state
        key = SharePartitionKey("g", topic_id, 0)
        written = asyncio.Event()
        real = persister.write

        async def write(*args: Any, **fields: Any) -> None:
            await real(*args, **fields)
            await written.wait()

        async with joined(server, topic_id) as member:
            assert acquired(await member.fetch(max_wait=60_000)) == [(0, 9, 1)]
            leader = server.services.share_partitions.get("g", topic_id, 0)
            assert leader is not None
            monkeypatch.setattr(persister, "write", write)
            outcomes: list[ApiError | None] = []
            leader.acknowledge("a", [(0, 4, ACCEPT)], outcomes.append)
            while (await persister.read(key, 0)).start_offset != 5:
                await asyncio.sleep(0)
            leader.acknowledge("a", [(5, 9, ACCEPT)], outcomes.append)
            await persister.delete(key)
            await persister.initialize(key, 0, 0)
            server.services.share_partitions.forget(key)
            written.set()
            while leader.is_writing:
                await asyncio.sleep(0)
            codes = [outcome and outcome.code for outcome in outcomes]
            assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, None]
            state = await persister.read(key, 0)
            assert (state.start_offset, state.batches) == (0, ())

    run(tmp_path, scenario)


# Without a server


class MemoryPersister:
    """Keeps the state of one share partition in memory."""

    def __init__(self) -> None:
        self.state = ShareState(0, 0, NO_START_OFFSET, 0, ())
        self.error: ApiError | None = None

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        self.state = ShareState(state_epoch, 0, start_offset, 0, ())

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        return self.state

    async def write(self, key: SharePartitionKey, **fields: Any) -> None:
        if self.error is not None:
            raise self.error
        self.state = ShareState(**fields | {"batches": tuple(fields["batches"])})


class RecordingListener:
    def __init__(self) -> None:
        self.events: list[str] = []

    def leader_ended(self, leader: ShareLeader) -> None:
        self.events.append("ended")

    def leader_rests(self, leader: ShareLeader) -> None:
        self.events.append("rests")


class NothingArchived:
    async def wait_until_loaded(self, partition: Partition) -> None:
        partition.check_archive()

    async def offset_for_timestamp(
        self, partition: Partition, timestamp_ms: int
    ) -> TimestampOffset | None:
        return partition.offset_for_timestamp(timestamp_ms)


class MemoryDeadLetters:
    def __init__(self) -> None:
        self.offsets: list[int] = []

    async def write(
        self, group_id: str, partition: Partition, letters: Sequence[DeadLetter]
    ) -> None:
        self.offsets += [letter.offset for letter in letters]


class Standalone:
    """A share leader with its surroundings in memory; make it inside a running event loop."""

    def __init__(self, **settings: str) -> None:
        table = Leader()
        self.clock = table.clock
        self.partition = table.partition()
        self.partition.append(
            table.batch(*(b"%d" % number for number in range(10))), acks=ACKS_LEADER
        )
        self.persister = MemoryPersister()
        self.dead_letters = MemoryDeadLetters()
        self.listener = RecordingListener()
        overrides = {name.replace("_", "."): value for name, value in settings.items()}
        config = BrokerConfig.from_values({"log.dirs": "/data"}).group_config(
            {"share.auto.offset.reset": "earliest"} | overrides
        )
        self.leader = ShareLeader(
            SharePartitionKey("g", UUID(int=1), 0),
            self.partition,
            self.listener,
            tasks=Tasks(asyncio.get_running_loop()),
            clock=self.clock,
            persister=self.persister,
            group_config=lambda _: config,
            dead_letters=self.dead_letters,
            archiving=NothingArchived(),
        )

    async def acquire(self, member_id: str = "m") -> list[tuple[int, int, int]]:
        """What a member gets of all that there is, once the leader is loaded."""
        while self.leader.window is None:
            await asyncio.sleep(0)
        offset = self.leader.window.next_fetch_offset
        read = read_log(self.partition, offset, 2**20, committed=False, may_block=True)
        return [tuple(it) for it in self.leader.acquire(Wish(member_id, 100, 100), read)]

    async def acknowledge(self, kind: int, first: int = 0, last: int = 9) -> ApiError | None:
        done: asyncio.Future[ApiError | None] = asyncio.get_running_loop().create_future()
        self.leader.acknowledge("m", [(first, last, kind)], done.set_result)
        return await done


def test_leader_alone_acquires_persists_and_rests() -> None:
    async def main() -> None:
        alone = Standalone()
        alone.leader.start()
        assert await alone.acquire() == [(0, 9, 1)]
        assert alone.persister.state.start_offset == 0, "where the group begins is persisted first"
        assert await alone.acknowledge(ACCEPT) is None
        assert alone.persister.state.start_offset == 10
        while alone.listener.events != ["rests"]:
            await asyncio.sleep(0)

    asyncio.run(main())


def test_leader_alone_gives_records_back_when_the_write_fails() -> None:
    async def main() -> None:
        alone = Standalone()
        alone.leader.start()
        await alone.acquire()
        alone.persister.error = ApiError(ErrorCode.NOT_COORDINATOR, "moved")
        error = await alone.acknowledge(ACCEPT)
        assert error is not None
        assert error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        alone.persister.error = None
        assert await alone.acknowledge(ACCEPT) is None

    asyncio.run(main())


def test_leader_alone_ends_when_another_has_fenced_it() -> None:
    async def main() -> None:
        alone = Standalone()
        alone.leader.start()
        await alone.acquire()
        alone.persister.error = ApiError(ErrorCode.FENCED_LEADER_EPOCH, "older")
        error = await alone.acknowledge(ACCEPT)
        assert error is not None
        assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert alone.listener.events[:1] == ["ended"]

    asyncio.run(main())


def test_leader_alone_writes_dead_letters_of_what_is_rejected() -> None:
    async def main() -> None:
        alone = Standalone(errors_deadletterqueue_topic_name="dlq.g")
        alone.leader.start()
        await alone.acquire()
        assert await alone.acknowledge(REJECT, 3, 4) is None
        while alone.dead_letters.offsets != [3, 4]:
            await asyncio.sleep(0)

    asyncio.run(main())
