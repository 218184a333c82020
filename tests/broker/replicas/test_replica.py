"""A replica reads its log up to where it is told, and says how far it is durable."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.replicas.pending import ACKS_ALL, ACKS_LEADER
from millstream.errors import ApiError, ErrorCode
from tests.broker.sharing.leading import Leader


def test_replica_reads_below_the_end_that_it_is_given() -> None:
    async def scenario() -> None:
        leader = Leader()
        partition = leader.partition()
        for value in (b"a", b"b"):
            partition.append(leader.batch(value), acks=ACKS_LEADER)
        replica = partition.replica
        both = replica.read(0, max_bytes=1000, end_offset=2)
        assert replica.read(0, max_bytes=1000, end_offset=1) == both[: len(both) // 2]
        assert replica.read(0, max_bytes=1000, end_offset=0) == b""
        with pytest.raises(ApiError) as refused:
            replica.read(3, max_bytes=1000, end_offset=3)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        found = replica.offset_for_timestamp(leader.clock.now_ms())
        assert found is not None
        assert found.offset == 0

    asyncio.run(scenario())


def test_flushed_end_follows_the_end_when_a_flush_is_done() -> None:
    async def scenario() -> None:
        leader = Leader()
        partition = leader.partition()
        pending = partition.append(leader.batch(b"a"), acks=ACKS_ALL)
        assert (partition.replica.end_offset, partition.replica.flushed_end) == (1, 0)
        await pending
        assert partition.replica.flushed_end == 1

    asyncio.run(scenario())
