"""Common cuts: stamps of several queries that stand for the same part of the log.

Every query has the offsets of its own batches. Two stamps fit together if they have the same
offsets in all partitions of the topics that both queries read, of the same topics by id. Of several
common cuts, the newest is chosen: that of the first query with the greatest number.
"""

from __future__ import annotations

from collections.abc import Sequence

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
