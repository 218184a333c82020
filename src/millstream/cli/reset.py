"""Computes the new offsets of `millstream group reset`, without applying them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from millstream.cli.cluster import Cluster, Partition
from millstream.cli.failures import CommandFailed, usage_error
from millstream.cli.moments import parse_moment_ms, parse_span_ms, to_ms


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
            raise usage_error(
                "give exactly one of --to-earliest, --to-latest, --to-current, --to-offset, "
                "--to-datetime, --by-duration, --shift-by"
            )


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

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


def parse_scope(
    cluster: Cluster, topics: list[str], all_topics: bool, committed: Mapping[Partition, int]
) -> list[Partition]:
    """The partitions of `--topic NAME[:0,1,...]`, or all with committed offsets."""
    if bool(topics) == all_topics:
        raise usage_error("give --topic NAME[:0,1,...], repeatable, or --all-topics")
    if all_topics:
        if not committed:
            raise CommandFailed("the group has no committed offsets; set --topic")
        return sorted(committed)
    places = []
    for scope in topics:
        topic, colon, indexes = scope.partition(":")
        known = cluster.partitions_of(topic)
        chosen = parse_indexes(indexes, scope) if colon else known
        if unknown := sorted(set(chosen) - set(known)):
            raise CommandFailed(f"{topic} has no partition {unknown[0]}, only 0 to {known[-1]}")
        places += [(topic, index) for index in chosen]
    return places


def parse_indexes(text: str, scope: str) -> list[int]:
    try:
        return sorted({int(index) for index in text.split(",")})
    except ValueError:
        raise usage_error(f"--topic {scope!r}: write it as NAME or NAME:0,1,2") from None


def plan(
    cluster: Cluster,
    committed: Mapping[Partition, int],
    places: list[Partition],
    target: Target,
    now: datetime,
) -> list[Move]:
    """The new offsets for the target; each is between log start and log end."""
    starts = cluster.start_offsets(places)
    ends = cluster.end_offsets(places)
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
    places: list[Partition],
    target: Target,
    now: datetime,
    committed: Mapping[Partition, int],
    starts: dict[Partition, int],
    ends: dict[Partition, int],
) -> dict[Partition, int]:
    """The target's offset in each partition, in range or not."""
    if target.earliest:
        return starts
    if target.latest:
        return ends
    if target.offset is not None:
        return dict.fromkeys(places, target.offset)
    if target.moment is not None:
        return cluster.offsets_at(places, parse_moment_ms(target.moment, now))
    if target.span_ago is not None:
        return cluster.offsets_at(places, to_ms(now) - parse_span_ms(target.span_ago))
    shift = target.shift or 0  # --to-current is a shift by nothing
    if uncommitted := [place for place in places if place not in committed]:
        topic, index = uncommitted[0]
        if target.shift is not None:
            raise CommandFailed(
                f"nothing is committed for {topic}[{index}], so it cannot be shifted"
            )
    return {place: committed.get(place, ends[place]) + shift for place in places}
