"""What of a partition can be read, by which clients."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.broker.replicas.pending import ACKS_ALL, ACKS_LEADER
from millstream.errors import ApiError, ErrorCode
from tests.broker.sharing.leading import Leader, turn


def run(scenario: Callable[[Leader], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Leader())

    asyncio.run(main())


def test_reading_ends_at_the_high_watermark() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        partition.append(leader.batch(b"flushed"), acks=ACKS_LEADER)
        partition.append(leader.batch(b"not yet"), acks=ACKS_ALL)
        assert (partition.high_watermark, partition.log.log_end_offset) == (1, 2)
        assert b"flushed" in partition.read(0, max_bytes=10_000)
        assert partition.read(1, max_bytes=10_000) == b""
        assert partition.read_committed(1, max_bytes=10_000) == (b"", [])
        with pytest.raises(ApiError) as refusal:
            partition.read(3, max_bytes=10_000)
        assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert b"not yet" in partition.read_to_end(1, max_bytes=10_000, may_block=False)
        await turn()
        assert b"not yet" in partition.read(1, max_bytes=10_000)

    run(scenario)


def test_partition_without_a_leader_here_is_not_read() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        partition.append(leader.batch(b"a"), acks=ACKS_LEADER)
        partition.stop(1)
        with pytest.raises(ApiError, match="no leader"):
            partition.read(0, max_bytes=10_000)
        with pytest.raises(ApiError, match="no leader"):
            partition.check_readable(may_follow=True)
        partition.follow(2, 3)
        partition.check_readable(may_follow=True)  # consumers that know where to go otherwise
        with pytest.raises(ApiError, match="broker 2 leads it"):
            partition.check_readable(may_follow=False)
        assert b"a" in partition.read(0, max_bytes=10_000)

    run(scenario)


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, None),
        (5, None),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_leader_epoch_of_a_client_must_be_ours(epoch: int, error: ErrorCode | None) -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition(leader_epoch=5)
        if error is None:
            partition.check_leader_epoch(epoch)
            return
        with pytest.raises(ApiError) as refusal:
            partition.check_leader_epoch(epoch)
        assert refusal.value.code is error

    run(scenario)


def test_diverging_epoch_is_where_the_client_went_another_way() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition(leader_epoch=1)
        partition.append(leader.batch(b"a", b"b"), acks=ACKS_LEADER)
        partition.begin_epoch(3)
        partition.append(leader.batch(b"c"), acks=ACKS_LEADER)
        assert partition.diverging_epoch(-1, 99) is None
        assert partition.diverging_epoch(1, 2) is None
        assert partition.diverging_epoch(1, 3) == (1, 2)
        assert partition.diverging_epoch(2, 2) == (1, 2)
        assert partition.end_of_epoch(3) == (3, 3)

    run(scenario)
