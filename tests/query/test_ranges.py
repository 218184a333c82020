"""Ranges of offsets, and the windows of a search."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.query.ranges import (
    ScanRange,
    after_hit,
    cut_window,
    joined,
    next_windows,
    total_size,
)

RANGES = st.lists(
    st.builds(
        lambda partition, first, size: ScanRange(partition, first, first + size),
        st.integers(0, 3),
        st.integers(0, 50),
        st.integers(0, 30),
    ),
    max_size=6,
)


def offsets_of(ranges: list[ScanRange] | tuple[ScanRange, ...]) -> list[tuple[int, int]]:
    return sorted((it.partition, offset) for it in ranges for offset in range(it.first, it.end))


@settings(max_examples=40)
@given(RANGES, st.integers(1, 40), st.booleans())
def test_windows_cover_every_offset_once(
    ranges: list[ScanRange], size: int, newest_first: bool
) -> None:
    rest = list(joined(ranges))
    expected = offsets_of(rest)
    seen: list[tuple[int, int]] = []
    rounds = 0
    while rest:
        windows, rest = next_windows(rest, size, newest_first=newest_first)
        assert len({it.partition for it in windows}) == len(windows)
        seen += offsets_of(windows)
        rounds += 1
        assert rounds < 1000
    assert sorted(seen) == expected
    assert len(seen) == len(set(seen))


def test_windows_start_at_the_requested_end() -> None:
    whole = ScanRange(0, 10, 100)
    assert cut_window(whole, 20, newest_first=False) == (
        ScanRange(0, 10, 30),
        ScanRange(0, 30, 100),
    )
    assert cut_window(whole, 20, newest_first=True) == (ScanRange(0, 80, 100), ScanRange(0, 10, 80))
    assert cut_window(whole, 90, newest_first=True) == (whole, None)
    newest, _ = next_windows([ScanRange(0, 0, 5), ScanRange(0, 90, 95)], 100, newest_first=True)
    assert newest == [ScanRange(0, 90, 95)]


def test_after_hit_leaves_what_follows_it() -> None:
    window = ScanRange(1, 10, 20)
    assert after_hit(window, 12, newest_first=False) == ScanRange(1, 13, 20)
    assert after_hit(window, 12, newest_first=True) == ScanRange(1, 10, 12)


@given(RANGES)
def test_joined_has_the_same_offsets_in_disjoint_ranges(ranges: list[ScanRange]) -> None:
    merged = joined(ranges)
    assert offsets_of(merged) == sorted(set(offsets_of(ranges)))
    assert total_size(merged) == len(offsets_of(merged))
