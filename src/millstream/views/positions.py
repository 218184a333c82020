"""Positions in the log that a reader asks for: what the views must have seen.

    ("orders", 0, 41)                 record 41 of partition 0
    {("orders", 0): 41}               the same; several partitions
    message                           a delivery report of confluent-kafka, or anything else with
                                      topic(), partition() and offset(), or such attributes
    [message, ...]                    several of these
    stamp                             of another read: at least what that one saw

All name the last record that must be seen, but for a stamp, which has the offsets behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from millstream.errors import ViewError
from millstream.partitions import TopicPartition
from millstream.views.spec import Stamp

Position: TypeAlias = Any
_FORMS = 'give ("topic", partition, offset), a delivery report, several of them, or a stamp'


def ends_of(given: Position) -> dict[TopicPartition, int]:
    """The offsets that must have been read, exclusive. Raises `ViewError`."""
    if given is None:
        return {}
    if isinstance(given, Stamp):
        return dict(given.offsets)
    if isinstance(given, Mapping):
        return {_partition(place): _whole(offset) + 1 for place, offset in given.items()}
    if _is_place(given):
        topic, partition, offset = given
        return {_partition((topic, partition)): _whole(offset) + 1}
    if hasattr(given, "topic") and hasattr(given, "partition") and hasattr(given, "offset"):
        topic, partition, offset = (_called(getattr(given, it)) for it in _PARTS)
        return {_partition((topic, partition)): _whole(offset) + 1}
    if isinstance(given, Iterable) and not isinstance(given, str | bytes):
        found: dict[TopicPartition, int] = {}
        for it in given:
            for place, end in ends_of(it).items():
                found[place] = max(end, found.get(place, 0))
        return found
    raise ViewError(f"{given!r} is no position in the log: {_FORMS}")


_PARTS = ("topic", "partition", "offset")
_DIGITS_MAX = 19  # of an offset


def parse_positions(text: str) -> dict[TopicPartition, int]:
    """Of `orders:0:41,users:1:7`: the last records that must be seen. Raises `ViewError`."""
    found: dict[TopicPartition, int] = {}
    for each in filter(None, text.split(",")):
        topic, *numbers = each.strip().split(":")
        if not topic or len(numbers) != 2 or not all(map(_is_number, numbers)):
            raise ViewError(
                f"{each!r} is no position: write topic:partition:offset, like orders:0:41"
            )
        place, offset = (topic, int(numbers[0])), int(numbers[1])
        found[place] = max(offset, found.get(place, 0))
    return found


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def _is_place(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 3 and isinstance(given[0], str)


def _called(value: Any) -> Any:
    return value() if callable(value) else value


def _partition(place: Any) -> TopicPartition:
    if (
        isinstance(place, tuple)
        and len(place) == 2
        and isinstance(place[0], str)
        and isinstance(place[1], int)
    ):
        return place
    raise ViewError(f"{place!r} is no partition of a topic: {_FORMS}")


def _whole(offset: Any) -> int:
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise ViewError(f"{offset!r} is no offset of a record: {_FORMS}")
    return offset
