"""A partition's promises: what is visible, what is answered, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from millstream.broker.replicas.in_sync import ReplicaSettings
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import ACKS_ALL, ACKS_LEADER, PendingAppend
from millstream.coordination.cluster import PartitionImage
from millstream.errors import ApiError, ErrorCode
from millstream.storage.following import append_fetched, check_fetched
from millstream.storage.log import Log
from millstream.storage.steps import run_here
from millstream.storage.truncation import truncate
from tests.broker.sharing.leading import Leader, turn


def run(scenario: Callable[[Leader], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Leader())

    asyncio.run(main())


def test_acks_leader_append_is_visible_and_done_at_once() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        pending = partition.append(leader.batch(b"a", b"b"), acks=ACKS_LEADER)
        assert pending.is_done
        assert (pending.first_offset, pending.next_offset) == (0, 2)
        assert partition.high_watermark == partition.last_stable_offset == 2

    run(scenario)


def test_acks_all_append_is_visible_and_done_when_flushed() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        pending = partition.append(leader.batch(b"a"), acks=ACKS_ALL)
        assert not pending.is_done
        assert partition.high_watermark == 0
        assert partition.read(0, max_bytes=1000) == b""
        assert await pending is pending
        assert partition.high_watermark == partition.log.flushed_offset == 1

    run(scenario)


def test_acks_leader_append_is_answered_but_not_seen_behind_an_unflushed_one() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        partition.append(leader.batch(b"a"), acks=ACKS_ALL)
        behind = partition.append(leader.batch(b"b"), acks=ACKS_LEADER)
        assert behind.is_done
        assert partition.high_watermark == 0
        await turn()
        assert partition.high_watermark == 2

    run(scenario)


def test_acks_all_append_is_done_at_once_where_the_topic_does_not_flush() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition(millstream_acks_all_flush=False)
        assert partition.append(leader.batch(b"a"), acks=ACKS_ALL).is_done
        assert (partition.high_watermark, partition.log.flushed_offset) == (1, 0)

    run(scenario)


def test_flush_messages_asks_for_a_flush_whatever_the_acks() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition(flush_messages=2)
        assert partition.append(leader.batch(b"a"), acks=ACKS_LEADER).is_done
        second = partition.append(leader.batch(b"b"), acks=ACKS_LEADER)
        assert not second.is_done
        await second
        assert partition.log.flushed_offset == 2

    run(scenario)


def test_duplicate_of_a_batch_being_flushed_waits_for_that_flush() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        batch = leader.batch(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
        first = partition.append(batch, acks=ACKS_ALL)
        again = partition.append(batch, acks=ACKS_ALL)
        assert not again.is_done
        await again
        assert first.is_done
        assert (again.first_offset, again.next_offset) == (0, 1)
        assert partition.log.log_end_offset == 1
        assert partition.append(batch, acks=ACKS_ALL).is_done

    run(scenario)


def test_failed_flush_fails_those_who_wait_and_takes_the_partition_offline() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        pending = partition.append(leader.batch(b"a"), acks=ACKS_ALL)
        leader.fs.fail_next_sync("journal")
        with pytest.raises(ApiError) as failure:
            await pending
        assert failure.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert partition.high_watermark == 0
        for refused in (
            lambda: partition.append(leader.batch(b"b"), acks=ACKS_LEADER),
            lambda: partition.read(0, max_bytes=1000),
        ):
            with pytest.raises(ApiError) as refusal:
                refused()
            assert refusal.value.code is ErrorCode.KAFKA_STORAGE_ERROR

    run(scenario)


def test_acks_all_append_is_refused_below_min_insync_replicas() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition(min_insync_replicas=2)
        partition.leadership.set_in_sync(frozenset(), replica_count=3)
        with pytest.raises(ApiError) as refusal:
            partition.append(leader.batch(b"a"), acks=ACKS_ALL)
        assert refusal.value.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.append(leader.batch(b"a"), acks=ACKS_LEADER).is_done

    run(scenario)


def test_min_insync_replicas_asks_for_no_more_replicas_than_there_are() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition(min_insync_replicas=2)
        await partition.append(leader.batch(b"a"), acks=ACKS_ALL)
        assert partition.high_watermark == 1

    run(scenario)


def test_append_tells_its_time_where_the_topic_stamps_it() -> None:
    async def scenario(leader: Leader) -> None:
        plain, stamped = (
            leader.partition("plain"),
            leader.partition("stamped", message_timestamp_type="LogAppendTime"),
        )
        batch = leader.batch(b"a")
        leader.clock.advance(5000)
        assert plain.append(batch, acks=ACKS_LEADER).log_append_time_ms == -1
        pending = stamped.append(batch, acks=ACKS_LEADER)
        assert pending.log_append_time_ms == leader.clock.now_ms()

    run(scenario)


def test_records_are_deleted_up_to_the_high_watermark_and_not_beyond() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        partition.append(leader.batch(b"a", b"b", b"c"), acks=ACKS_LEADER)
        assert partition.delete_records_before(2) == 2
        assert partition.delete_records_before(1) == 2
        with pytest.raises(ApiError) as refusal:
            partition.delete_records_before(4)
        assert refusal.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert partition.delete_records_before(-1) == 3

    run(scenario)


class Seen:
    """A watcher that remembers the high watermarks it was told of."""

    def __init__(self) -> None:
        self.high_watermarks: list[int] = []

    def partition_changed(self, partition: Partition) -> None:
        self.high_watermarks.append(partition.high_watermark)


def test_watchers_hear_of_what_has_become_visible() -> None:
    async def scenario(leader: Leader) -> None:
        partition, seen = leader.partition(), Seen()
        partition.watch(seen)
        partition.append(leader.batch(b"a"), acks=ACKS_LEADER)
        partition.append(leader.batch(b"b"), acks=ACKS_ALL)
        assert seen.high_watermarks == [1]
        await turn()
        assert seen.high_watermarks == [1, 2]
        partition.unwatch(seen)
        partition.append(leader.batch(b"c"), acks=ACKS_LEADER)
        assert seen.high_watermarks == [1, 2]

    run(scenario)


def test_pending_append_calls_back_once_and_late_comers_at_once() -> None:
    async def scenario(leader: Leader) -> None:
        pending = leader.partition().append(leader.batch(b"a"), acks=ACKS_ALL)
        calls: list[PendingAppend] = []
        pending.when_done(calls.append)
        await turn()
        pending.when_done(calls.append)
        assert calls == [pending, pending]

    run(scenario)


def test_raising_callback_does_not_lose_the_acknowledgements_behind_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_: PendingAppend) -> None:
        raise RuntimeError("a defect")

    async def scenario(leader: Leader) -> None:
        topics = ("first", "second")
        first, second = (
            leader.partition(topic).append(leader.batch(b"a"), acks=ACKS_ALL) for topic in topics
        )
        behind = leader.partitions.find("first", 0).append(leader.batch(b"b"), acks=ACKS_ALL)
        first.when_done(broken)
        await turn()
        assert first.is_done
        assert behind.is_done
        assert second.is_done, "another partition in the same flush"

    run(scenario)
    assert "a defect" in caplog.text


def test_raising_watcher_keeps_the_news_from_nobody(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def partition_changed(self, partition: Partition) -> None:
            raise RuntimeError("a defect")

    async def scenario(leader: Leader) -> None:
        partition, seen = leader.partition(), [Seen() for _ in range(5)]
        for watcher in (*seen[:2], Broken(), *seen[2:]):
            partition.watch(watcher)
        await partition.append(leader.batch(b"a"), acks=ACKS_ALL)
        assert [watcher.high_watermarks for watcher in seen] == [[1]] * 5

    run(scenario)
    assert "a defect" in caplog.text


# Transactions


def transactional(leader: Leader, *values: bytes, sequence: int = 0, producer_id: int = 7) -> bytes:
    return leader.batch(
        *values,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


def end(partition: Partition, *, committed: bool, producer_id: int = 7) -> PendingAppend:
    return partition.append_marker(
        producer_id=producer_id,
        producer_epoch=1,
        coordinator_epoch=0,
        committed=committed,
        transaction_version=2,
    )


def test_batch_opens_a_transaction_only_if_that_is_verified() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        batch = transactional(leader, b"a")
        with pytest.raises(ApiError) as refused:
            partition.append(batch, acks=ACKS_ALL)
        assert refused.value.code is ErrorCode.INVALID_TXN_STATE
        assert not partition.is_in_transaction(7, 0)
        await partition.append(batch, acks=ACKS_ALL, verified=True)
        assert partition.is_in_transaction(7, 0)
        await partition.append(transactional(leader, b"b", sequence=1), acks=ACKS_ALL)
        await end(partition, committed=True)
        with pytest.raises(ApiError) as refused:
            partition.append(transactional(leader, b"c", sequence=2), acks=ACKS_ALL)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_EPOCH

    run(scenario)


def test_open_transaction_holds_back_those_who_read_committed() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        await partition.append(leader.batch(b"before"), acks=ACKS_ALL)
        stable_bytes = partition.stable_bytes
        await partition.append(transactional(leader, b"a"), acks=ACKS_ALL, verified=True)
        await partition.append(leader.batch(b"after"), acks=ACKS_ALL)
        assert (partition.last_stable_offset, partition.high_watermark) == (1, 3)
        assert partition.stable_bytes == stable_bytes < partition.visible_bytes
        marker = end(partition, committed=True)
        assert partition.last_stable_offset == 1, "the marker is not durable yet"
        await marker
        assert partition.last_stable_offset == partition.high_watermark == 4
        assert partition.stable_bytes == partition.visible_bytes

    run(scenario)


def test_marker_that_a_flush_does_not_cover_ends_nothing_for_readers() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        partition.append(transactional(leader, b"a"), acks=ACKS_ALL, verified=True)
        marker = end(partition, committed=True)
        partition.log.flushed_offset = 1  # by a flush that began before the marker was written
        partition.flushed()
        assert (partition.last_stable_offset, partition.high_watermark) == (0, 1)
        assert partition.read_committed(0, max_bytes=1000) == (b"", [])
        await marker
        assert partition.last_stable_offset == 2

    run(scenario)


def test_reader_is_told_which_transactions_were_aborted_in_what_it_gets() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        for producer_id in (7, 8):
            batch = transactional(leader, b"a" * 100, producer_id=producer_id)
            await partition.append(batch, acks=ACKS_ALL, verified=True)
            await end(partition, committed=False, producer_id=producer_id)
        records, aborted = partition.read_committed(0, max_bytes=10_000)
        assert [(it.producer_id, it.first_offset) for it in aborted] == [(7, 0), (8, 2)]
        _, aborted = partition.read_committed(0, max_bytes=len(records) // 2)
        assert [(it.producer_id, it.first_offset) for it in aborted] == [(7, 0)]
        _, aborted = partition.read_committed(2, max_bytes=10_000)
        assert [(it.producer_id, it.first_offset) for it in aborted] == [(8, 2)]
        _, aborted = partition.read_committed(1, max_bytes=10_000)
        assert len(aborted) == 2, "the marker itself is part of the transaction"

    run(scenario)


def test_reader_needs_no_more_of_the_aborted_transactions_than_those_in_what_it_gets() -> None:
    """Else every read of a long history would go through all that was aborted after it."""

    async def scenario(leader: Leader) -> None:
        partition = leader.partition(segment_bytes=1024)
        for producer_id in (7, 8, 9):
            batch = transactional(leader, b"a" * 800, producer_id=producer_id)
            await partition.append(batch, acks=ACKS_ALL, verified=True)
            await end(partition, committed=False, producer_id=producer_id)
        _, second, *_ = partition.log.segments
        leader.fs.unlink(second.transaction_index.path)
        records, aborted = partition.read_committed(0, max_bytes=1000, may_block=True)
        assert records
        assert [it.first_offset for it in aborted] == [0]
        with pytest.raises(ApiError, match="cannot read the aborted"):
            partition.read_committed(second.base_offset, max_bytes=1000, may_block=True)

    run(scenario)


def test_deleting_records_moves_the_last_stable_offset_with_the_start() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        batch = transactional(leader, b"a", b"b", b"c")
        await partition.append(batch, acks=ACKS_ALL, verified=True)
        partition.delete_records_before(2)
        assert partition.last_stable_offset == partition.log_start_offset == 2

    run(scenario)


def test_producers_are_described() -> None:
    async def scenario(leader: Leader) -> None:
        partition = leader.partition()
        now_ms = leader.clock.now_ms()
        await partition.append(transactional(leader, b"a", b"b"), acks=ACKS_ALL, verified=True)
        assert partition.producer_states() == [(7, 0, 1, now_ms, -1, 0)]
        await end(partition, committed=True)
        assert partition.producer_states() == [(7, 1, -1, now_ms, 0, -1)]

    run(scenario)


def two_replicas(
    leader: Leader, log: Log, *, high_watermark: int = 0
) -> tuple[Partition, ReplicaSettings]:
    partition = Partition(
        "t",
        0,
        log,
        leader_epoch=0,
        flusher=leader.flusher,
        clock=leader.clock,
        high_watermark=high_watermark,
        replica_count=2,
    )
    settings = ReplicaSettings(1, 1000, {1: 1, 2: 2}, lambda: True, lambda: None)
    return partition, settings


def transaction(leader: Leader) -> tuple[bytes, bytes]:
    """The bytes of a record, and of one in a transaction with its end, at offsets 0, 1 and 2."""
    source = leader.partition()
    source.append(leader.batch(b"before"), acks=ACKS_LEADER)
    identity = {"producer_id": 7, "producer_epoch": 0}
    batch = leader.batch(b"in", base_sequence=0, is_transactional=True, **identity)
    source.append(batch, acks=ACKS_LEADER, verified=True)
    data = bytes(source.log.read(0, max_bytes=10_000, end_offset=2))
    source.append_marker(committed=True, coordinator_epoch=0, transaction_version=1, **identity)
    return data, bytes(source.log.read(2, max_bytes=10_000, end_offset=3))


def follow(partition: Partition, data: bytes) -> None:
    log = partition.log
    fetched = check_fetched(data)
    offset = log.log_end_offset
    followed = append_fetched(log, fetched, fetch_offset=offset, leader_epoch=0, now_ms=0)
    partition.transactions_ended(followed.ended)


def test_new_leader_does_not_show_the_end_of_a_transaction_before_it_is_committed() -> None:
    async def scenario(leader: Leader) -> None:
        data, marker = transaction(leader)
        partition, settings = two_replicas(leader, leader.partition(topic="copy").log)
        partition.follow(2, 0)
        follow(partition, data)
        follow(partition, marker)
        partition.followed_to(2)
        assert (partition.high_watermark, partition.last_stable_offset) == (2, 1)
        image = PartitionImage((2, 1), (1, 2), 1, leader_epoch=1, partition_epoch=1)
        partition.lead(image, settings)
        assert (partition.high_watermark, partition.last_stable_offset) == (2, 1)
        await turn()
        assert partition.in_sync is not None
        partition.in_sync.fetched(2, 2, 3, 0)
        assert (partition.high_watermark, partition.last_stable_offset) == (3, 3)

    run(scenario)


def test_marker_that_was_truncated_opens_its_transaction_again() -> None:
    async def scenario(leader: Leader) -> None:
        data, marker = transaction(leader)
        partition, _ = two_replicas(leader, leader.partition(topic="copy").log)
        partition.follow(2, 0)
        follow(partition, data)
        follow(partition, marker)
        run_here(truncate(partition.log, 2))
        partition.followed_to(2)
        assert partition.last_stable_offset == 1
        follow(partition, marker)
        partition.followed_to(3)
        assert partition.last_stable_offset == 3

    run(scenario)


def test_restarted_replica_shows_nothing_committed_until_all_of_it_is() -> None:
    """It does not know whether transactions ended past its high watermark."""

    async def scenario(leader: Leader) -> None:
        data, marker = transaction(leader)
        log = leader.partition(topic="copy").log
        append_fetched(log, check_fetched(data + marker), fetch_offset=0, leader_epoch=0, now_ms=0)
        partition, _ = two_replicas(leader, log, high_watermark=2)
        partition.follow(2, 0)
        assert (partition.high_watermark, partition.last_stable_offset) == (2, 0)
        partition.followed_to(3)
        assert partition.last_stable_offset == 3

    run(scenario)
