"""Finding partitions by name and by id."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from millstream.broker.replicas.pending import ACKS_ALL
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


def test_removed_partition_is_gone_and_tells_those_who_wait() -> None:
    async def main() -> None:
        leader = Leader()
        partition = leader.partition("topic", 0)
        pending = partition.append(leader.batch(b"a"), acks=ACKS_ALL)
        assert leader.partitions.remove("topic", 0) is partition
        assert leader.partitions.remove("topic", 0) is None
        with pytest.raises(ApiError) as refusal:
            await pending
        assert refusal.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert len(leader.partitions) == 0
        with pytest.raises(ApiError) as refusal:
            leader.partitions.find(partition.topic_id or "", 0)
        assert refusal.value.code is ErrorCode.UNKNOWN_TOPIC_ID

    asyncio.run(main())
