"""Share groups between membership and persister: in one go, interrupted, refused, at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import UUID

import pytest

from millstream.broker.coordinators.share_groups import ShareGroupCoordinator
from millstream.broker.coordinators.share_state import SharePersister
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.coordination.groups.share import ShareGroup
from millstream.coordination.groups.share_messages import ShareHeartbeat
from millstream.coordination.share_state import SharePartitionKey
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.apis import CoordinatorKind
from tests.broker.serving import serving
from tests.broker.sharing.calls import produce

JOIN = ShareHeartbeat("g", "m", 0, topic_names=("orders",))
LEAVE = ShareHeartbeat("g", "m", -1)
ALL = frozenset({0, 1, 2})

Scenario = Callable[[BrokerServer, UUID], Awaitable[None]]


def run(directory: Path, scenario: Scenario) -> None:
    """Run a scenario against a broker with the topic `orders` of three partitions."""

    async def main() -> None:
        async with serving(directory) as server:
            if "orders" not in server.metadata.image.topics:
                await server.topics.create([NewTopic("orders", partition_count=3)])
            await server.coordinators.find(CoordinatorKind.GROUP, "g")
            await server.coordinators.groups.all_loaded()
            await scenario(server, server.metadata.image.topics["orders"].id)

    asyncio.run(main())


class GatedPersister:
    """The real persister behind a gate: it can be held up, and refuse."""

    def __init__(self, persister: SharePersister) -> None:
        self._persister = persister
        self.open = asyncio.Event()
        self.open.set()
        self.reached = asyncio.Event()
        self.refusals = 0

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        await self._pass()
        await self._persister.initialize(key, state_epoch, start_offset)

    async def delete(self, key: SharePartitionKey) -> None:
        await self._pass()
        await self._persister.delete(key)

    async def _pass(self) -> None:
        self.reached.set()
        await self.open.wait()
        if self.refusals:
            self.refusals -= 1
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, "not now")


def gated(server: BrokerServer) -> tuple[ShareGroupCoordinator, GatedPersister]:
    persister = GatedPersister(server.coordinators.share_state)
    coordinator = ShareGroupCoordinator(server.coordinators.groups, persister)  # type: ignore[arg-type]
    return coordinator, persister


def group_of(server: BrokerServer) -> ShareGroup | None:
    for shard in server.coordinators.groups.shards():
        if "g" in shard.groups:
            group = shard.groups["g"]
            assert isinstance(group, ShareGroup)
            return group
    return None


async def start_offset(server: BrokerServer, topic_id: UUID, partition: int = 0) -> int:
    key = SharePartitionKey("g", topic_id, partition)
    return (await server.coordinators.share_state.read_summary(key, -1)).start_offset


async def has_state(server: BrokerServer, topic_id: UUID) -> bool:
    try:
        await server.coordinators.share_state.peek(SharePartitionKey("g", topic_id, 0))
    except ApiError:
        return False
    return True


def forget_nothing(key: SharePartitionKey) -> None:
    """Nobody leads a partition for the group."""


def test_member_has_its_partitions_after_one_heartbeat(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        answer = await server.coordinators.share_groups.heartbeat(JOIN)
        assert answer.assignment == {topic_id: ALL}
        assert await has_state(server, topic_id)

    run(tmp_path, scenario)


def test_member_and_position_survive_a_restart(tmp_path: Path) -> None:
    async def before(server: BrokerServer, topic_id: UUID) -> None:
        coordinator = server.coordinators.share_groups
        await produce(server, 10, topic="orders")
        await coordinator.alter_offsets("g", [("orders", 0, 7)], forget_nothing)
        epochs.append((await coordinator.heartbeat(JOIN)).member_epoch)

    async def after(server: BrokerServer, topic_id: UUID) -> None:
        beat = ShareHeartbeat("g", "m", epochs[0])
        answer = await server.coordinators.share_groups.heartbeat(beat)
        assert (answer.member_epoch, answer.assignment) == (epochs[0], None)
        assert await start_offset(server, topic_id) == 7

    epochs: list[int] = []
    run(tmp_path, before)
    run(tmp_path, after)


def test_initialization_is_finished_when_the_client_is_gone(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        coordinator, persister = gated(server)
        persister.open.clear()
        waiting = asyncio.create_task(coordinator.heartbeat(JOIN))
        await persister.reached.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        persister.open.set()
        # Whoever deletes waits for it; and then there is something to delete.
        await coordinator.heartbeat(LEAVE)
        deleted = await coordinator.delete_offsets("g", ["orders"], forget_nothing)
        assert deleted[0].error is ErrorCode.NONE
        assert len(deleted[0].keys) == 3

    run(tmp_path, scenario)


def test_initialization_cut_off_by_the_end_of_the_broker_is_made_up_for(tmp_path: Path) -> None:
    async def before(server: BrokerServer, topic_id: UUID) -> None:
        coordinator, persister = gated(server)
        persister.open.clear()
        waiting = asyncio.create_task(coordinator.heartbeat(JOIN))
        await persister.reached.wait()
        await coordinator.stop()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not await has_state(server, topic_id)

    async def after(server: BrokerServer, topic_id: UUID) -> None:
        group = group_of(server)
        assert group is not None
        beat = ShareHeartbeat("g", "m", group.members["m"].epoch)
        answer = await server.coordinators.share_groups.heartbeat(beat)
        assert answer.assignment == {topic_id: ALL}

    run(tmp_path, before)
    run(tmp_path, after)


def test_member_is_in_even_if_the_persister_refuses(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        coordinator, persister = gated(server)
        persister.refusals = 1
        answer = await coordinator.heartbeat(JOIN)
        assert answer.assignment == {}
        # Two of three partitions have been initialized; the third follows with the next heartbeat.
        beat = ShareHeartbeat("g", "m", answer.member_epoch)
        answer = await coordinator.heartbeat(beat)
        assert answer.assignment == {topic_id: ALL}

    run(tmp_path, scenario)


def test_heartbeats_go_on_while_partitions_are_initialized(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        coordinator, persister = gated(server)
        persister.open.clear()
        waiting = asyncio.create_task(coordinator.heartbeat(JOIN))
        await persister.reached.wait()
        other = ShareHeartbeat("g", "other", 0, topic_names=("orders",))
        assert (await coordinator.heartbeat(other)).assignment == {}
        persister.open.set()
        given = (await waiting).assignment
        assert given is not None
        assert given[topic_id] < ALL

    run(tmp_path, scenario)


def test_position_deleted_while_a_member_joins_is_there_in_the_end(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        coordinator, persister = gated(server)
        await coordinator.heartbeat(JOIN)
        await coordinator.heartbeat(LEAVE)
        persister.open.clear()
        persister.reached.clear()
        deleting = asyncio.create_task(coordinator.delete_offsets("g", ["orders"], forget_nothing))
        await persister.reached.wait()
        joining = asyncio.create_task(coordinator.heartbeat(JOIN))
        persister.open.set()
        assert (await deleting)[0].error is ErrorCode.NONE
        assert (await joining).assignment == {topic_id: ALL}
        assert await has_state(server, topic_id)
        group = group_of(server)
        assert group is not None
        assert group.state.deleting == {}

    run(tmp_path, scenario)


def test_group_that_gains_a_member_while_it_is_deleted_stays(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        coordinator, persister = gated(server)
        await coordinator.heartbeat(JOIN)
        await coordinator.heartbeat(LEAVE)
        persister.open.clear()
        persister.reached.clear()
        deleting = asyncio.create_task(coordinator.delete_group("g", forget_nothing))
        await persister.reached.wait()
        joining = asyncio.create_task(coordinator.heartbeat(JOIN))
        while (group := group_of(server)) is None or group.is_empty:
            await asyncio.sleep(0)
        persister.open.set()
        with pytest.raises(ApiError) as refused:
            await deleting
        assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
        assert (await joining).assignment == {topic_id: ALL}
        assert await has_state(server, topic_id)

    run(tmp_path, scenario)


def test_deleting_a_group_takes_its_state_and_tells_the_leaders(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        coordinator, persister = gated(server)
        await coordinator.heartbeat(JOIN)
        with pytest.raises(ApiError) as refused:
            await coordinator.delete_group("g", forget_nothing)
        assert refused.value.code is ErrorCode.NON_EMPTY_GROUP
        await coordinator.heartbeat(LEAVE)
        persister.refusals = 1
        with pytest.raises(ApiError) as refused:
            await coordinator.delete_group("g", forget_nothing)
        assert refused.value.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert group_of(server) is not None
        forgotten: list[SharePartitionKey] = []
        await coordinator.delete_group("g", forgotten.append)
        assert forgotten == [SharePartitionKey("g", topic_id, index) for index in range(3)]
        assert group_of(server) is None
        assert not await has_state(server, topic_id)

    run(tmp_path, scenario)


def test_altering_tells_the_leaders_and_what_went_wrong(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        coordinator, persister = gated(server)
        forgotten: list[SharePartitionKey] = []
        positions = [("orders", 0, 7), ("orders", 1, 8), ("orders", 9, 0)]
        persister.refusals = 1
        outcomes = await coordinator.alter_offsets("g", positions, forgotten.append)
        codes = [error.code if error else ErrorCode.NONE for _, error in outcomes]
        assert codes == [
            ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]
        assert [key.partition for key in forgotten] == [0, 1]
        assert await coordinator.initialized_partitions("g") == {topic_id: frozenset({1})}
        assert await start_offset(server, topic_id, 1) == 8

    run(tmp_path, scenario)


def test_topic_that_is_deleted_leaves_neither_position_nor_state(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        coordinator = server.coordinators.share_groups
        first = await coordinator.heartbeat(JOIN)
        await server.topics.delete([topic_id])
        assert await coordinator.initialized_partitions("g") == {}
        assert not await has_state(server, topic_id)
        beat = ShareHeartbeat("g", "m", first.member_epoch)
        assert (await coordinator.heartbeat(beat)).assignment == {}

    run(tmp_path, scenario)
