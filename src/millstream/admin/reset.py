"""Computes the new offsets of a group for a reset, without applying them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from difflib import get_close_matches
from typing import Any

from millstream.admin.errors import InvalidArgument, NotFound, OperationFailed
from millstream.admin.moments import parse_moment_ms, parse_span_ms, to_ms
from millstream.admin.offsets import end_offsets, known_topics, offsets_at, start_offsets
from millstream.client.cluster import Cluster
from millstream.models import dataclass
from millstream.partitions import TopicPartition


@dataclass(frozen=True)
class Target:
    """The target: exactly one field is set."""

    earliest: bool = False
    latest: bool = False
    current: bool = False
    offset: int | None = None
    moment: str | None = None
    span_ago: str | None = None
    shift: int | None = None

    def __post_init__(self) -> None:
        values = asdict(self).values()
        if sum(value is not None and value is not False for value in values) != 1:
            raise InvalidArgument(
                "give exactly one of --to-earliest, --to-latest, --to-current, --to-offset, "
                "--to-datetime, --by-duration, --shift-by"
            )

    def options(self) -> list[str]:
        """As on the command line of `millstream group reset`."""
        if self.earliest or self.latest or self.current:
            name = "earliest" if self.earliest else "latest" if self.latest else "current"
            return [f"--to-{name}"]
        if self.offset is not None:
            return ["--to-offset", str(self.offset)]
        if self.moment is not None:
            return ["--to-datetime", self.moment]
        if self.span_ago is not None:
            return ["--by-duration", self.span_ago]
        return ["--shift-by", str(self.shift)]


@dataclass(frozen=True)
class Move:
    """A partition's committed offset, now and after the reset."""

    topic: str
    partition: int
    committed: int | None
    target: int
    start: int
    end: int
    note: str = ""

    @property
    def difference(self) -> int | None:
        """Records that are read again, if negative, or skipped."""
        return None if self.committed is None else self.target - self.committed

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def parse_scope(
    cluster: Cluster, topics: Iterable[str], all_topics: bool, committed: Iterable[TopicPartition]
) -> list[TopicPartition]:
    """The partitions of `--topic NAME[:0,1,...]`, or all with committed offsets."""
    scopes = list(topics)
    if bool(scopes) == all_topics:
        raise InvalidArgument("give --topic NAME[:0,1,...], repeatable, or --all-topics")
    if all_topics:
        places = sorted(committed)
        if not places:
            raise OperationFailed("the group has no committed offsets; set --topic")
        return places
    places = []
    for scope in scopes:
        topic, colon, indexes = scope.partition(":")
        count = partition_count(cluster, topic)
        chosen = parse_indexes(indexes, scope) if colon else list(range(count))
        if unknown := [index for index in chosen if not 0 <= index < count]:
            raise OperationFailed(f"{topic} has no partition {unknown[0]}, only 0 to {count - 1}")
        places += [(topic, index) for index in chosen]
    return places


def partition_count(cluster: Cluster, topic: str) -> int:
    """Raises `OperationFailed` for an unknown topic."""
    known = known_topics(cluster, [topic])
    if topic not in known:
        visible = cluster.retrying(lambda: cluster.refresh(None))
        close = get_close_matches(topic, visible, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise NotFound(
            f"there is no topic {topic!r}, or the user has no right on it (Describe){hint}"
        )
    return len(known[topic].partitions)


def parse_indexes(text: str, scope: str) -> list[int]:
    try:
        return sorted({int(index) for index in text.split(",")})
    except ValueError:
        raise InvalidArgument(f"--topic {scope!r}: write it as NAME or NAME:0,1,2") from None


def plan(
    cluster: Cluster,
    committed: Mapping[TopicPartition, int],
    places: list[TopicPartition],
    target: Target,
    now: datetime,
) -> list[Move]:
    """The new offsets for the target; each is between log start and log end."""
    starts = start_offsets(cluster, places)
    ends = end_offsets(cluster, places)
    wanted = wanted_offsets(cluster, places, target, now, committed, starts, ends)
    moves = []
    for place in places:
        offset = min(max(wanted[place], starts[place]), ends[place])
        clamped = "" if offset == wanted[place] else f"{wanted[place]} is out of range"
        moves.append(
            Move(*place, committed.get(place), offset, starts[place], ends[place], clamped)
        )
    return moves


def wanted_offsets(
    cluster: Cluster,
    places: list[TopicPartition],
    target: Target,
    now: datetime,
    committed: Mapping[TopicPartition, int],
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """The target's offset in each partition, in range or not."""
    if target.earliest:
        return starts
    if target.latest:
        return ends
    if target.offset is not None:
        return dict.fromkeys(places, target.offset)
    if target.moment is not None:
        return offsets_at(cluster, places, parse_moment_ms(target.moment, now))
    if target.span_ago is not None:
        return offsets_at(cluster, places, to_ms(now) - parse_span_ms(target.span_ago))
    shift = target.shift or 0  # --to-current is a shift by nothing
    if uncommitted := [place for place in places if place not in committed]:
        topic, index = uncommitted[0]
        if target.shift is not None:
            raise OperationFailed(
                f"nothing is committed for {topic}[{index}], so it cannot be shifted"
            )
    return {place: committed.get(place, ends[place]) + shift for place in places}
