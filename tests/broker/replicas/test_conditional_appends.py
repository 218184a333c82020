"""Conditional appends to a partition: answers are true, and retries of a producer come first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import ACKS_ALL, ACKS_LEADER
from millstream.errors import ApiError, ErrorCode
from millstream.storage.versions import ConditionFailed
from tests.broker.sharing.leading import Leader
from tests.storage.versioned import versioned_batch


def run(scenario: Callable[[Partition], Awaitable[None]], condition: str = "version") -> None:
    async def main() -> None:
        await scenario(Leader().partition(millstream_conditional_append=condition))

    asyncio.run(main())


def test_refusal_waits_until_the_record_that_it_lost_to_is_durable() -> None:
    async def scenario(partition: Partition) -> None:
        first = partition.append(versioned_batch((b"a", "1")), acks=ACKS_ALL)
        second = partition.append(versioned_batch((b"a", "1")), acks=ACKS_ALL)
        assert not first.is_done
        assert not second.is_done
        assert partition.high_watermark == 0
        await first
        with pytest.raises(ConditionFailed, match=r"at version 1 \(offset 0\)"):
            await second
        assert partition.high_watermark == partition.log.log_end_offset == 1
        with pytest.raises(ConditionFailed):  # at once: it is durable
            partition.append(versioned_batch((b"a", "1")), acks=ACKS_ALL)

    run(scenario)


def test_refusal_with_acks_leader_is_immediate() -> None:
    async def scenario(partition: Partition) -> None:
        partition.append(versioned_batch((b"a", "1")), acks=ACKS_ALL)
        with pytest.raises(ConditionFailed):
            partition.append(versioned_batch((b"a", "1")), acks=ACKS_LEADER)

    run(scenario)


def test_refusal_at_an_offset_waits_until_the_log_is_durable() -> None:
    async def scenario(partition: Partition) -> None:
        def offer(offset: str) -> bytes:
            return versioned_batch((None, offset), header="millstream-offset")

        first = partition.append(offer("0"), acks=ACKS_ALL)
        second = partition.append(offer("0"), acks=ACKS_ALL)
        assert not second.is_done
        await first
        with pytest.raises(ConditionFailed, match="ends at offset 1"):
            await second

    run(scenario, "offset")


def test_retry_of_an_idempotent_producer_is_a_duplicate_and_not_a_conflict() -> None:
    async def scenario(partition: Partition) -> None:
        first = versioned_batch((b"a", "1"), producer_id=5, producer_epoch=0, base_sequence=0)
        await partition.append(first, acks=ACKS_ALL)
        again = await partition.append(first, acks=ACKS_ALL)
        assert (again.first_offset, partition.log.log_end_offset) == (0, 1)
        conflict = versioned_batch((b"a", "1"), producer_id=5, producer_epoch=0, base_sequence=1)
        with pytest.raises(ConditionFailed):
            partition.append(conflict, acks=ACKS_ALL)
        # The refused batch took no sequence number.
        right = versioned_batch((b"a", "2"), producer_id=5, producer_epoch=0, base_sequence=1)
        await partition.append(right, acks=ACKS_ALL)

    run(scenario)


def test_repeated_events_of_a_restarted_client_are_answered_when_they_are_durable() -> None:
    async def scenario(partition: Partition) -> None:
        first = versioned_batch(
            (b"a", "1"), event_id=b"e", producer_id=5, producer_epoch=0, base_sequence=0
        )
        partition.append(first, acks=ACKS_ALL)
        again = versioned_batch(
            (b"a", "1"), event_id=b"e", producer_id=6, producer_epoch=0, base_sequence=0
        )
        repeated = partition.append(again, acks=ACKS_ALL)
        assert not repeated.is_done
        await repeated
        assert (repeated.first_offset, partition.log.log_end_offset) == (0, 1)

    run(scenario)


def test_versions_are_given_back_if_the_log_refuses_the_append() -> None:
    async def scenario(partition: Partition) -> None:
        await partition.append(versioned_batch((b"a", "1")), acks=ACKS_ALL)
        partition.log.is_truncating = True
        with pytest.raises(ApiError) as caught:
            partition.append(versioned_batch((b"a", "2")), acks=ACKS_ALL)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        partition.log.is_truncating = False
        await partition.append(versioned_batch((b"a", "2")), acks=ACKS_ALL)

    run(scenario)


def test_topic_without_the_setting_ignores_the_headers() -> None:
    async def scenario(partition: Partition) -> None:
        for _ in range(3):
            await partition.append(versioned_batch((b"a", "1")), acks=ACKS_ALL)
        assert partition.log.versions is None
        assert partition.log.accepts_small_appends

    run(scenario, "none")
