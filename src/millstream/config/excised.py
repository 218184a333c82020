"""Offsets that a topic must not have any more: the setting `millstream.excised.offsets`.

    0:5+17-19@7,3:88@2    partition 0: offsets 5 and 17 to 19; partition 3: offset 88

It is a list, so that several requests can append to it at once. `@7` is the epoch of the leader
when the records were chosen: what the leader of a later epoch writes at these offsets is another
record, and stays. That happens to a log that was restored from a backup, or has lost its end.

Every replica removes the records at these offsets from its log, and does so again for a log that
was away, restored from a backup, or copied from a replica that had them still. See
docs/decisions/0048-excision.md.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from millstream.config.setting import LONG_MAX
from millstream.config.topic import TopicConfig
from millstream.errors import ConfigError

EXCISED = "millstream.excised.offsets"
TEXT_LENGTH_MAX = 262_144  # of one topic: every broker keeps it in memory, and ZooKeeper too
PARTITION_MAX = 2**31 - 1

ANY_EPOCH = 2**31 - 1

_ITEM = re.compile(r"(\d+):(\d+(?:-\d+)?(?:\+\d+(?:-\d+)?)*)(?:@(\d{1,10}))?")

Range = tuple[int, int]


class OffsetRanges:
    """A set of offsets as ascending ranges, both ends included."""

    __slots__ = ("_firsts", "ranges")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self.ranges = tuple(_merged(sorted(ranges)))
        self._firsts = [first for first, _ in self.ranges]

    @classmethod
    def of(cls, offsets: Iterable[int]) -> OffsetRanges:
        return cls((offset, offset) for offset in offsets)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OffsetRanges) and self.ranges == other.ranges

    def __hash__(self) -> int:
        return hash(self.ranges)

    def __repr__(self) -> str:
        return f"OffsetRanges({self})"

    def __str__(self) -> str:
        return "+".join(
            str(first) if first == last else f"{first}-{last}" for first, last in self.ranges
        )

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)

    def __contains__(self, offset: int) -> bool:
        return self.overlaps(offset, offset)

    def overlaps(self, first: int, last: int) -> bool:
        """Whether any offset from `first` to `last` is among these."""
        index = bisect_right(self._firsts, last) - 1
        return index >= 0 and self.ranges[index][1] >= first

    def between(self, first: int, last: int) -> Iterator[Range]:
        """The ranges that overlap with those from `first` to `last`."""
        for index in range(max(bisect_right(self._firsts, first) - 1, 0), len(self.ranges)):
            start, end = self.ranges[index]
            if start > last:
                return
            if end >= first:
                yield start, end

    def __or__(self, other: OffsetRanges) -> OffsetRanges:
        return OffsetRanges((*self.ranges, *other.ranges))

    @property
    def last(self) -> int:
        """-1 if there is none."""
        return self.ranges[-1][1] if self.ranges else -1


def _merged(ranges: Iterable[Range]) -> Iterator[Range]:
    """Ranges that overlap or touch, as one."""
    current: Range | None = None
    for first, last in ranges:
        if current is not None and first <= current[1] + 1:
            current = current[0], max(current[1], last)
            continue
        if current is not None:
            yield current
        current = first, last
    if current is not None:
        yield current


class ExcisedOffsets:
    """The offsets of one partition, each with the last leader epoch of the records that go."""

    __slots__ = ("_by_epoch", "ranges")

    def __init__(self, by_epoch: Mapping[int, OffsetRanges] = MappingProxyType({})) -> None:
        self._by_epoch = dict(by_epoch)
        self.ranges = OffsetRanges(it for each in by_epoch.values() for it in each.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExcisedOffsets) and self._by_epoch == other._by_epoch

    __hash__ = None  # type: ignore[assignment]

    def __or__(self, other: ExcisedOffsets) -> ExcisedOffsets:
        merged = dict(self._by_epoch)
        for epoch, ranges in other._by_epoch.items():
            merged[epoch] = merged.get(epoch, OffsetRanges()) | ranges
        return ExcisedOffsets(merged)

    def removes(self, offset: int, leader_epoch: int) -> bool:
        """Whether a record that was appended in this epoch goes."""
        return any(
            leader_epoch <= epoch and offset in ranges for epoch, ranges in self._by_epoch.items()
        )

    def items(self, partition: int) -> tuple[str, ...]:
        """As the setting has them."""
        return tuple(
            f"{partition}:{ranges}" + ("" if epoch == ANY_EPOCH else f"@{epoch}")
            for epoch, ranges in sorted(self._by_epoch.items())
            if ranges
        )


def parse_excised(items: Iterable[str]) -> dict[int, ExcisedOffsets]:
    """The offsets by partition. Raises `ConfigError`."""
    found: dict[int, ExcisedOffsets] = {}
    for item in items:
        match = _ITEM.fullmatch(item)
        if match is None:
            raise _refusal(f"{_shortened(item)} is not PARTITION:OFFSET+FIRST-LAST+...@EPOCH")
        partition = int(match[1])
        epoch = ANY_EPOCH if match[3] is None else int(match[3])
        if partition > PARTITION_MAX or epoch > ANY_EPOCH:
            raise _refusal(f"{_shortened(item)} is not of a partition or an epoch")
        more = ExcisedOffsets({epoch: parse_ranges(match[2])})
        found[partition] = found.get(partition, ExcisedOffsets()) | more
    return found


def parse_ranges(text: str) -> OffsetRanges:
    """What `str` makes of ranges. Raises `ConfigError`."""
    return OffsetRanges(_parse_range(each) for each in text.split("+") if each)


def _parse_range(text: str) -> Range:
    first, _, last = text.partition("-")
    start, end = int(first), int(last or first)
    if not start <= end <= LONG_MAX:
        raise _refusal(f"{_shortened(text)} is not a range of offsets")
    return start, end


def format_excised(offsets: Mapping[int, ExcisedOffsets]) -> tuple[str, ...]:
    return tuple(item for partition, it in sorted(offsets.items()) for item in it.items(partition))


def check_excised(config: TopicConfig) -> None:
    """Refuse what is not such a list, or is too long. Raises `ConfigError`."""
    items = config.millstream_excised_offsets
    length = sum(map(len, items)) + len(items)
    if length > TEXT_LENGTH_MAX:
        raise _refusal(
            f"it has {length} characters, and at most {TEXT_LENGTH_MAX} are kept: excise in "
            "parts, and remove from the setting the offsets that all replicas have excised"
        )
    parse_excised(items)


def _refusal(reason: str) -> ConfigError:
    return ConfigError(f"Invalid value for configuration {EXCISED}: {reason}")


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
