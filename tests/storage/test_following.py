"""A follower's log is byte for byte the leader's, with the same state, however it was fetched."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, CorruptBatch, ErrorCode, StorageError, UnexpectedOffset
from millstream.records.batch import iterate_headers
from millstream.records.record import ControlType, Record, encode_batch, encode_end_transaction
from millstream.storage import lookup
from millstream.storage.following import append_fetched, check_fetched
from millstream.storage.log import Log
from tests.drawing import draws
from tests.storage.store import Store, make_batch, read_all, truncate_to
from tests.storage.versioned import VersionedStore

LEADER_EPOCH = 100
PRODUCERS = (7, 8, 9)


def stored_bytes(log: Log) -> bytes:
    """All batches, whatever the segments."""
    return b"".join(
        segment.read_at(segment.size, 0, may_block=True) for segment in log.segments if segment.size
    )


def fetch(follower: Store, leader: Log, max_bytes: int, *, torn_bytes: int = 0) -> None:
    """One fetch answer, of which the last bytes may be missing."""
    log = follower.log()
    offset = log.log_end_offset
    data = leader.read(
        offset, max_bytes=max_bytes, end_offset=leader.log_end_offset, may_block=True
    )
    first = next(iterate_headers(data))[1].size_bytes
    whole = data[: max(first, len(data) - torn_bytes)]
    append_fetched(
        log,
        check_fetched(whole),
        fetch_offset=offset,
        leader_epoch=LEADER_EPOCH,
        now_ms=follower.clock.now_ms(),
    )


def follow(follower: Store, leader: Log, max_bytes: int = 1_000_000) -> None:
    while follower.log().log_end_offset < leader.log_end_offset:
        fetch(follower, leader, max_bytes)


def assert_equal(follower: Log, leader: Log) -> None:
    assert stored_bytes(follower) == stored_bytes(leader)
    assert follower.log_end_offset == leader.log_end_offset
    assert follower.epochs.entries == leader.epochs.entries
    assert follower.producers.encode_snapshot() == leader.producers.encode_snapshot()
    assert follower.producers.first_open_offset == leader.producers.first_open_offset
    ends = (0, leader.log_end_offset)
    assert lookup.aborted_transactions(follower, *ends) == lookup.aborted_transactions(
        leader, *ends
    )


def marker(producer_id: int, kind: ControlType, timestamp: int = 1_700_000_000_000) -> bytes:
    return encode_end_transaction(
        kind,
        offset=0,
        timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=3,
    )


class Leader(Store):
    """Writes batches of idempotent and transactional producers, in rising epochs."""

    def __init__(self, config: TopicConfig) -> None:
        super().__init__(config=config)
        self.epoch = 0
        self.sequences = dict.fromkeys(PRODUCERS, 0)

    def write(self, kind: str, producer_id: int, count: int) -> None:
        if kind == "new epoch":
            self.epoch += 1
        elif kind == "plain":
            self.append(*[b"v" * count] * count, epoch=self.epoch)
        elif kind == "data":
            sequence = self.sequences[producer_id]
            self.sequences[producer_id] += count
            batch = make_batch(
                *[b"x"] * count,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
            self.append_batch(batch, epoch=self.epoch)
        else:
            self.append_batch(marker(producer_id, ControlType[kind]), epoch=self.epoch)


writes = st.lists(
    st.tuples(
        st.sampled_from(["plain", "data", "data", "COMMIT", "ABORT", "new epoch"]),
        st.sampled_from(PRODUCERS),
        st.integers(1, 4),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=draws(60), deadline=None)
@given(writes, st.integers(1, 900), st.integers(0, 80), st.integers(120, 900), st.data())
def test_follower_is_equal_to_its_leader_whatever_an_answer_holds(
    history: list[tuple[str, int, int]],
    max_bytes: int,
    torn_bytes: int,
    segment_bytes: int,
    data: st.DataObject,
) -> None:
    leader = Leader(TopicConfig(segment_bytes=500, index_interval_bytes=100))
    for write in history:
        leader.write(*write)
    follower = Store(config=TopicConfig(segment_bytes=segment_bytes, index_interval_bytes=60))
    while follower.log().log_end_offset < leader.log().log_end_offset:
        fetch(follower, leader.log(), max_bytes, torn_bytes=torn_bytes)
        if data.draw(st.integers(0, 3)) == 0:
            follower.flush(0)
            follower.crash(seed=data.draw(st.integers(0, 9)))
    assert_equal(follower.log(), leader.log())
    # Cut anywhere and fetched again, it is the same log, also after a power cut.
    truncate_to(follower.log(), data.draw(st.integers(0, leader.log().log_end_offset)))
    follow(follower, leader.log(), max_bytes)
    assert_equal(follower.log(), leader.log())
    follower.flush(0)
    follower.crash()
    assert_equal(follower.log(), leader.log())


def test_answer_for_another_offset_is_refused() -> None:
    leader, follower = Store(), Store()
    leader.append(b"a")
    leader.append(b"b")
    data = leader.log().read(1, max_bytes=1000, end_offset=2)
    late = check_fetched(data)
    with pytest.raises(UnexpectedOffset, match=r"ends at 0, but .* fetched at 1") as error:
        append_fetched(follower.log(), late, fetch_offset=1, leader_epoch=0, now_ms=0)
    assert error.value.first_offset == 1
    assert follower.log().log_end_offset == 0


def test_batch_that_begins_before_the_end_is_refused() -> None:
    leader, follower = Store(), Store()
    leader.append(b"a", b"b", b"c")
    follower.append(b"a")
    fetched = check_fetched(leader.log().read(1, max_bytes=1000, end_offset=3))
    with pytest.raises(UnexpectedOffset, match="inside the leader's batch at 0") as error:
        append_fetched(follower.log(), fetched, fetch_offset=1, leader_epoch=0, now_ms=0)
    assert error.value.first_offset == 0


def test_batch_of_a_later_epoch_than_the_leaders_is_refused() -> None:
    leader, follower = Store(), Store()
    leader.append(b"a", epoch=5)
    fetched = check_fetched(leader.log().read(0, max_bytes=1000, end_offset=1))
    with pytest.raises(CorruptBatch, match="leader epoch 5, but its leader has 4"):
        append_fetched(follower.log(), fetched, fetch_offset=0, leader_epoch=4, now_ms=0)
    assert follower.log().log_end_offset == 0


def test_damaged_batch_is_refused() -> None:
    leader = Store()
    leader.append(b"first")
    leader.append(b"second")
    data = bytearray(leader.log().read(0, max_bytes=1000, end_offset=2))
    data[-2] ^= 1
    with pytest.raises(CorruptBatch, match="CRC"):
        check_fetched(data)


def test_batches_out_of_order_are_refused() -> None:
    leader = Store()
    leader.append(b"first")
    leader.append(b"second")
    first = leader.log().read(0, max_bytes=1, end_offset=2)
    with pytest.raises(CorruptBatch, match="at offset 0 follows one that ends at 1"):
        check_fetched(bytes(first) * 2)


def test_answer_without_a_whole_batch_changes_nothing() -> None:
    follower = Store()
    fetched = check_fetched(make_batch(b"x")[:-1])
    appended = append_fetched(follower.log(), fetched, fetch_offset=0, leader_epoch=0, now_ms=0)
    assert appended == (0, 0, ())


def test_gaps_that_compaction_left_are_kept() -> None:
    batches = b"".join(
        encode_batch([Record(offset, 1000, None, b"x", ())]) for offset in (3, 10, 11, 40)
    )
    follower = Store(config=TopicConfig(segment_bytes=150))
    log = follower.log()
    append_fetched(log, check_fetched(batches), fetch_offset=0, leader_epoch=0, now_ms=0)
    follower.flush(0)
    follower.crash()
    assert [record.offset for record in read_all(follower.log())] == [3, 10, 11, 40]
    assert follower.log().log_end_offset == 41


def test_gap_that_no_segment_can_span_is_refused() -> None:
    batch = encode_batch([Record(2**31 + 5, 1000, None, b"x", ())])
    with pytest.raises(StorageError, match="a segment cannot span that"):
        append_fetched(
            Store().log(), check_fetched(batch), fetch_offset=0, leader_epoch=0, now_ms=0
        )


def test_batch_larger_than_a_segment_gets_one_of_its_own() -> None:
    leader = Store()
    for size in (10, 500, 10):
        leader.append(b"x" * size)
    follower = Store(config=TopicConfig(segment_bytes=200))
    follow(follower, leader.log())
    assert [segment.base_offset for segment in follower.log().segments] == [0, 1, 2]
    assert stored_bytes(follower.log()) == stored_bytes(leader.log())


def test_full_disk_keeps_what_was_appended() -> None:
    leader = Store()
    for _ in range(4):
        leader.append(b"x" * 20)
    follower = Store(config=TopicConfig(segment_bytes=200))
    fetch(follower, leader.log(), 1)
    follower.fs.fail_writes_after(100)
    with pytest.raises(ApiError) as error:
        fetch(follower, leader.log(), 10_000)
    assert error.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    follower.fs.heal()
    follow(follower, leader.log())
    assert_equal(follower.log(), leader.log())


def test_follower_that_leads_continues_and_appends_small_batches_again() -> None:
    leader, follower = Store(), Store()
    leader.append(b"a", epoch=1)
    follow(follower, leader.log())
    log = follower.log()
    assert not log.accepts_small_appends
    assert log.assign_epoch(3) == 1
    assert log.end_offset_for_epoch(2) == (1, 1)
    assert log.end_offset_for_epoch(3) == (3, 1)
    assert follower.append(b"b", epoch=3).first_offset == 1
    assert log.epochs.entries == ((1, 0), (3, 1))
    assert log.accepts_small_appends


def test_epoch_of_a_leader_that_appended_nothing_gives_way_to_the_next() -> None:
    store = Store()
    store.append(b"a", epoch=1)
    log = store.log()
    log.assign_epoch(4)
    log.assign_epoch(6)
    assert log.epochs.entries == ((1, 0), (6, 1))
    assert log.end_offset_for_epoch(5) == (1, 1)


def test_epoch_of_a_leader_that_appended_nothing_gives_way_to_batches_of_an_earlier_one() -> None:
    """The next leader has batches of an epoch before it that this broker had not fetched yet."""
    leader, follower = Store(), Store()
    for value in (b"a", b"b", b"c"):
        leader.append(value, epoch=6)
    fetch(follower, leader.log(), 1)
    follower.log().assign_epoch(7)
    leader.append(b"d", epoch=8)
    follow(follower, leader.log())
    assert follower.log().epochs.entries == leader.log().epochs.entries == ((6, 0), (8, 3))


def test_versions_of_keys_follow_the_leader() -> None:
    leader, follower = VersionedStore(), VersionedStore()
    leader.offer((b"a", 1), (b"b", 1))
    leader.offer_in_transaction(7, (b"a", 2))
    leader.end(7, ControlType.COMMIT)
    leader.offer_in_transaction(7, (b"b", 2))
    follow(follower, leader.log(), 1_000_000)
    assert follower.versions([b"a", b"b"]) == leader.versions([b"a", b"b"])
    with pytest.raises(ApiError, match="held by an open transaction"):
        follower.offer((b"b", 2))
    leader.end(7, ControlType.ABORT)
    follow(follower, leader.log())
    assert follower.offer((b"b", 2)).first_offset == leader.log().log_end_offset


def test_runs_of_batches_fill_segments() -> None:
    leader = Store()
    for _ in range(9):
        leader.append(b"x" * 20)
    follower = Store(config=TopicConfig(segment_bytes=300))
    follow(follower, leader.log())
    bases = [segment.base_offset for segment in follower.log().segments]
    assert {after - before for before, after in pairwise(bases)} == {3}
