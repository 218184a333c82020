"""A follower: fetch positions, truncation by epochs, answers that come too late."""

from __future__ import annotations

import pytest

from millstream.coordination.replication.follower import (
    Append,
    AskOffsets,
    Continue,
    FetchAnswer,
    FetchPosition,
    FollowerReplica,
    Ignore,
    Retry,
    Truncate,
    Wipe,
)
from millstream.errors import ErrorCode
from millstream.storage.epochs import LeaderEpochs


def follower(
    *epochs: tuple[int, int], start: int = 0, end: int = 30, hw: int = 12
) -> FollowerReplica:
    history = LeaderEpochs("/log")
    for epoch, offset in epochs or ((1, 0), (4, 10), (7, 20)):
        history.assign(epoch, offset)
    return FollowerReplica(9, history, start=start, end=end, flushed_end=end, high_watermark=hw)


def asked(it: FollowerReplica) -> FetchPosition:
    position = it.next_fetch()
    assert position is not None
    return position


def test_fetch_starts_at_the_flushed_end_with_the_epoch_of_the_last_record() -> None:
    assert follower().next_fetch() == FetchPosition(30, 9, 7, 0)
    assert follower((1, 0), (5, 30)).next_fetch() == FetchPosition(30, 9, 1, 0)
    assert follower(start=30).next_fetch() == FetchPosition(30, 9, -1, 30)


def test_nothing_is_fetched_before_records_are_appended_and_flushed() -> None:
    it = follower()
    assert it.answered(asked(it), FetchAnswer(records=b"batch")) == Append(b"batch")
    assert it.next_fetch() is None
    it.appended(33)
    assert it.next_fetch() is None
    it.flushed(33)
    assert asked(it).offset == 33


def test_high_watermark_follows_the_leaders_up_to_the_own_end() -> None:
    it = follower()
    position = asked(it)
    it.answered(position, FetchAnswer(records=b"batch", high_watermark=99))
    assert it.high_watermark == 12
    it.appended(33)
    assert it.high_watermark == 33
    it.flushed(33)
    assert it.answered(asked(it), FetchAnswer(high_watermark=40)) == Continue()
    assert it.high_watermark == 33
    assert it.answered(asked(it), FetchAnswer(high_watermark=5)) == Continue()
    assert it.high_watermark == 33


def test_answer_to_another_position_or_epoch_is_ignored() -> None:
    it = follower()
    position = asked(it)
    answer = FetchAnswer(records=b"batch", high_watermark=30)
    assert it.answered(position._replace(offset=29), answer) == Ignore()
    assert it.answered(position._replace(leader_epoch=8), answer) == Ignore()
    assert it.high_watermark == 12
    assert it.answered(position, answer) == Append(b"batch")
    assert it.answered(position, answer) == Ignore()


@pytest.mark.parametrize(
    ("diverging", "offset"),
    [((7, 25), 25), ((7, 40), 30), ((4, 15), 15), ((4, 22), 20), ((5, 22), 20), ((0, 6), 0)],
)
def test_log_is_cut_where_the_epochs_diverge(diverging: tuple[int, int], offset: int) -> None:
    it = follower(hw=0)
    effect = it.answered(asked(it), FetchAnswer(diverging=diverging, high_watermark=99))
    assert effect == Truncate(offset, False)
    assert it.next_fetch() is None
    it.truncated(offset)
    assert asked(it).offset == offset
    assert it.high_watermark == 0


def test_cut_below_the_high_watermark_is_told_and_lowers_it() -> None:
    it = follower(hw=25)
    assert it.answered(asked(it), FetchAnswer(diverging=(7, 22))) == Truncate(22, True)
    it.truncated(22)
    assert it.high_watermark == 22


def test_offset_out_of_range_is_resolved_by_the_leaders_ends() -> None:
    out = FetchAnswer(int(ErrorCode.OFFSET_OUT_OF_RANGE))
    it = follower()
    position = asked(it)
    assert it.answered(position, out) == AskOffsets()
    assert it.offsets(position, 0, 28) == Truncate(28, False)
    it = follower()
    assert it.offsets(position, 50, 60) == Wipe(50)
    it.wiped(50)
    assert it.next_fetch() == FetchPosition(50, 9, -1, 50)
    assert it.offsets(position, 50, 60) == Ignore()
    it = follower()
    assert it.offsets(position, 0, 30) == Retry(int(ErrorCode.OFFSET_OUT_OF_RANGE))


def test_log_that_starts_after_the_leaders_end_is_wiped() -> None:
    it = follower((7, 20), start=20)
    assert it.offsets(asked(it), 0, 5) == Wipe(5)


def test_other_errors_are_retried() -> None:
    it = follower()
    error = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert it.answered(asked(it), FetchAnswer(error)) == Retry(error)
    assert it.next_fetch() is not None


def test_damaged_records_are_fetched_again() -> None:
    it = follower()
    it.answered(asked(it), FetchAnswer(records=b"batch"))
    it.append_failed()
    assert asked(it).offset == 30


def test_start_of_the_leader_is_noted() -> None:
    it = follower()
    it.answered(asked(it), FetchAnswer(log_start_offset=8))
    assert (it.start, it.leader_start) == (0, 8)
    it.start_moved(8)
    assert asked(it).log_start_offset == 8
