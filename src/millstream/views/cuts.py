"""Common cuts: stamps of several queries that stand for the same part of the log.

Every query has the offsets of its own batches. Two stamps fit together if they have the same
offsets in all partitions of the topics that both queries read, of the same topics by id. Of several
common cuts, the newest is chosen: that of the first query with the greatest number.

Queries that are in step with another one, their leader, end batches at stamps of the leader only.
One that is slower than the leader skips some. So that all of them still have cuts in common, each
goes on to that stamp whose number is divisible by the highest power of two. A query that is never
2^n stamps behind stops at every multiple of 2^n: a multiple is skipped only for a higher power of
two behind it, and that is at least 2^n further.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from millstream.views.generations import has_reached
from millstream.views.spec import Stamp


def common_cut(queries: Sequence[Sequence[Stamp]]) -> list[Stamp] | None:
    """One stamp of each query, all of which fit together; None if there are none.

    Each query's stamps are in the order of their numbers.
    """
    return _complete([], queries)


def _complete(chosen: list[Stamp], rest: Sequence[Sequence[Stamp]]) -> list[Stamp] | None:
    if not rest:
        return chosen
    for stamp in reversed(rest[0]):
        if all(fit(it, stamp) for it in chosen):
            found = _complete([*chosen, stamp], rest[1:])
            if found is not None:
                return found
    return None


def fit(one: Stamp, other: Stamp) -> bool:
    """Whether two stamps stand for the same records of every topic that both have."""
    shared = {topic for topic, _ in one.offsets} & {topic for topic, _ in other.offsets}
    for topic in shared:
        if one.topic_ids.get(topic) != other.topic_ids.get(topic):
            return False
    places = {it for it in (*one.offsets, *other.offsets) if it[0] in shared}
    return all(one.offsets.get(it, 0) == other.offsets.get(it, 0) for it in places)


def next_cut(leader: Sequence[Stamp], reached: Stamp, topics: Collection[str]) -> Stamp | None:
    """The stamp of the leader to which a query reads next that has reached a stamp of its own; None
    if there is none behind it. `topics` are those that the query reads."""
    behind = [
        it
        for it in leader
        if has_reached(it, reached) and not has_reached(reached, of_topics(it, topics))
    ]
    return max(behind, key=lambda it: _power_of_two(_number(it)), default=None)


def of_topics(stamp: Stamp, topics: Collection[str]) -> Stamp:
    """The stamp without the offsets of other topics."""
    ends = {place: end for place, end in stamp.offsets.items() if place[0] in topics}
    return replace(stamp, offsets=ends)


def _number(stamp: Stamp) -> int:
    (number,) = stamp.numbers.values()
    return number


def _power_of_two(number: int) -> int:
    """The highest that divides it."""
    return number & -number
