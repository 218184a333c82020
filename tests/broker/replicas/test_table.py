"""Finding partitions by name and by id."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from millstream.broker.replicas.partition import Partition
from millstream.errors import ApiError, ErrorCode
from tests.broker.sharing.leading import Leader


def test_partition_is_found_by_name_and_by_id() -> None:
    async def main() -> None:
        leader = Leader()
        partition = leader.partition("topic", 3)
        table = leader.partitions
        assert partition.topic_id is not None
        assert table.get("topic", 3) is partition
        assert table.get_by_id(partition.topic_id, 3) is partition
        assert table.find("topic", 3) is table.find(partition.topic_id, 3) is partition
        assert table.get("topic", 4) is None
        assert list(table) == [partition]
        assert table.high_watermarks() == {("topic", 3): 0}

    asyncio.run(main())


def test_what_does_not_exist_is_refused_as_it_was_asked_for() -> None:
    async def main() -> None:
        leader = Leader()
        partition = leader.partition("topic", 0)
        assert partition.topic_id is not None
        for key, index, code in (
            ("other", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("topic", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (partition.topic_id, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            (uuid.uuid4(), 0, ErrorCode.UNKNOWN_TOPIC_ID),
        ):
            with pytest.raises(ApiError) as refusal:
                leader.partitions.find(key, index)
            assert refusal.value.code is code

    asyncio.run(main())


def test_adding_a_partition_again_only_raises_its_leader_epoch() -> None:
    async def main() -> None:
        leader = Leader()
        partition = leader.partition("topic", 0, leader_epoch=1)
        again = leader.partitions.add("topic", 0, partition.log, leader_epoch=2)
        assert again is partition
        assert partition.leader_epoch == 2

    asyncio.run(main())


def test_removed_partition_is_not_found() -> None:
    async def main() -> None:
        leader = Leader()
        partition = leader.partition("topic", 0)
        assert leader.partitions.is_online("topic", 0)
        assert leader.partitions.remove("topic", 0) is partition
        assert leader.partitions.remove("topic", 0) is None
        assert len(leader.partitions) == 0
        assert not leader.partitions.is_online("topic", 0)
        with pytest.raises(ApiError) as refusal:
            leader.partitions.find(partition.topic_id or "", 0)
        assert refusal.value.code is ErrorCode.UNKNOWN_TOPIC_ID

    asyncio.run(main())


def test_partition_whose_directory_failed_is_not_online() -> None:
    async def main() -> None:
        leader = Leader()
        leader.partition("topic", 0).go_offline(ApiError(ErrorCode.KAFKA_STORAGE_ERROR))
        assert leader.partitions.get("topic", 0) is not None
        assert not leader.partitions.is_online("topic", 0)

    asyncio.run(main())


class OneUnopened:
    """topic-1 has a log and is not open."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.topic_id = uuid.uuid4()

    def contains(self, topic: str, index: int) -> bool:
        return (topic, index) == ("topic", 1)

    def contains_topic(self, topic_id: uuid.UUID) -> bool:
        return topic_id == self.topic_id

    def open(self, topic: str | uuid.UUID, index: int) -> Partition | None:
        is_wanted = topic in ("topic", self.topic_id) and index == 1
        return self.leader.partition("topic", 1) if is_wanted else None

    def is_elsewhere(self, topic: str | uuid.UUID, index: int) -> bool:
        return topic == "topic" and index == 5


@pytest.mark.parametrize("way", ["find", "find by id", "get", "get_by_id"])
def test_unopened_partition_is_opened_when_it_is_needed(way: str) -> None:
    async def main() -> None:
        leader = Leader()
        table = leader.partitions
        table.unopened = unopened = OneUnopened(leader)
        assert table.is_online("topic", 1)
        assert not table.is_online("topic", 2)
        assert len(table) == 0
        with pytest.raises(ApiError) as refusal:
            table.find(unopened.topic_id, 2)
        assert refusal.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(ApiError) as refusal:
            table.find("topic", 5)
        assert refusal.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        match way:
            case "find":
                partition: Partition | None = table.find("topic", 1)
            case "find by id":
                partition = table.find(unopened.topic_id, 1)
            case "get":
                partition = table.get("topic", 1)
            case _:
                partition = table.get_by_id(unopened.topic_id, 1)
        assert list(table) == [partition]

    asyncio.run(main())
