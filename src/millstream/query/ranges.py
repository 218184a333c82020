"""Ranges of offsets to scan, and the windows in which a search works through them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, order=True)
class ScanRange:
    """Offsets of one partition, from `first` up to, not with, `end`."""

    partition: int
    first: int
    end: int

    @property
    def size(self) -> int:
        return max(self.end - self.first, 0)


def total_size(ranges: Iterable[ScanRange]) -> int:
    return sum(it.size for it in ranges)


def without_empty(ranges: Iterable[ScanRange]) -> tuple[ScanRange, ...]:
    return tuple(it for it in ranges if it.size)


def cut_window(
    whole: ScanRange, size: int, *, newest_first: bool
) -> tuple[ScanRange, ScanRange | None]:
    """The part of a range that is scanned next, and the rest."""
    if whole.size <= size:
        return whole, None
    if newest_first:
        middle = whole.end - size
        return replace(whole, first=middle), replace(whole, end=middle)
    middle = whole.first + size
    return replace(whole, end=middle), replace(whole, first=middle)


def next_windows(
    ranges: Sequence[ScanRange], size: int, *, newest_first: bool
) -> tuple[list[ScanRange], list[ScanRange]]:
    """The next window of every partition, together about `size` offsets, and what is left.

    A partition may have several ranges; its next one is the first, or the last if `newest_first`.
    """
    by_partition: dict[int, list[ScanRange]] = {}
    for it in sorted(without_empty(ranges), reverse=newest_first):
        by_partition.setdefault(it.partition, []).append(it)
    share = max(size // max(len(by_partition), 1), 1)
    windows: list[ScanRange] = []
    rest: list[ScanRange] = []
    for waiting in by_partition.values():
        window, remaining = cut_window(waiting[0], share, newest_first=newest_first)
        windows.append(window)
        rest += [remaining] if remaining else []
        rest += waiting[1:]
    return windows, rest


def after_hit(window: ScanRange, offset: int, *, newest_first: bool) -> ScanRange:
    """What is left of a window if everything up to a hit at `offset`, and it, is reported."""
    return replace(window, end=offset) if newest_first else replace(window, first=offset + 1)


def joined(ranges: Iterable[ScanRange]) -> tuple[ScanRange, ...]:
    """The same offsets in as few ranges as possible, in order."""
    merged: list[ScanRange] = []
    for it in sorted(without_empty(ranges)):
        last = merged[-1] if merged else None
        if last is not None and last.partition == it.partition and last.end >= it.first:
            merged[-1] = replace(last, end=max(last.end, it.end))
        else:
            merged.append(it)
    return tuple(merged)
