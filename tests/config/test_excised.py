"""The setting that lists excised offsets: sets of ranges, text, and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.excised import (
    ANY_EPOCH,
    TEXT_LENGTH_MAX,
    ExcisedOffsets,
    OffsetRanges,
    check_excised,
    format_excised,
    parse_excised,
)
from millstream.config.topic import TopicConfig
from millstream.errors import ConfigError

OFFSETS = st.sets(st.integers(0, 60))


@given(OFFSETS, OFFSETS)
def test_ranges_are_sets_of_offsets(some: set[int], more: set[int]) -> None:
    ranges = OffsetRanges.of(some)
    assert list(ranges) == sorted(some)
    assert len(ranges) == len(some)
    assert ranges.last == max(some, default=-1)
    assert set(ranges | OffsetRanges.of(more)) == some | more
    for first in range(0, 60, 7):
        last = first + 9
        assert ranges.overlaps(first, last) == any(it in some for it in range(first, last + 1))
        found = {it for low, high in ranges.between(first, last) for it in range(low, high + 1)}
        assert found & set(range(first, last + 1)) == some & set(range(first, last + 1))
        assert (first in ranges) == (first in some)


@given(st.dictionaries(st.integers(0, 5), st.dictionaries(st.integers(0, 9), OFFSETS)))
def test_text_is_read_as_it_is_written(offsets: dict[int, dict[int, set[int]]]) -> None:
    wanted = {
        partition: ExcisedOffsets({epoch: OffsetRanges.of(it) for epoch, it in some.items() if it})
        for partition, some in offsets.items()
        if any(some.values())
    }
    assert parse_excised(format_excised(wanted)) == wanted


@given(st.dictionaries(st.integers(0, 9), OFFSETS), st.integers(0, 60), st.integers(0, 10))
def test_records_of_later_epochs_stay(
    by_epoch: dict[int, set[int]], offset: int, epoch: int
) -> None:
    excised = ExcisedOffsets({it: OffsetRanges.of(some) for it, some in by_epoch.items()})
    expected = any(offset in some and epoch <= it for it, some in by_epoch.items())
    assert excised.removes(offset, epoch) == expected
    assert set(excised.ranges) == {it for some in by_epoch.values() for it in some}


def test_text_is_short_for_neighbours() -> None:
    offsets = {
        3: ExcisedOffsets({2: OffsetRanges.of([88])}),
        0: ExcisedOffsets({ANY_EPOCH: OffsetRanges.of([5, 17, 18, 19])}),
    }
    assert format_excised(offsets) == ("0:5+17-19", "3:88@2")
    merged = parse_excised(["0:5@2", "0:6-7+8@2"])
    assert merged == {0: ExcisedOffsets({2: OffsetRanges([(5, 8)])})}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5", "5 is not PARTITION:OFFSET"),
        ("0:", "0: is not PARTITION:OFFSET"),
        ("0:-5", "0:-5 is not PARTITION:OFFSET"),
        ("0:7-5", "7-5 is not a range of offsets"),
        ("0:99999999999999999999", "99999999999999999999 is not a range"),
        ("99999999999:1", "99999999999:1 is not of a partition"),
        ("0:1@9999999999", "is not of a partition or an epoch"),
        ("0:1@", "0:1@ is not PARTITION:OFFSET"),
        ("0:1++2", "0:1++2 is not PARTITION:OFFSET"),
    ],
)
def test_other_text_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=r"millstream\.excised\.offsets") as refusal:
        check_excised(TopicConfig(millstream_excised_offsets=(text,)))
    assert reason in str(refusal.value)


def test_more_than_brokers_keep_is_refused() -> None:
    items = (f"0:{OffsetRanges.of(range(0, TEXT_LENGTH_MAX, 2))}",)
    with pytest.raises(ConfigError, match="excise in parts"):
        check_excised(TopicConfig(millstream_excised_offsets=items))
