"""Where replicas go: a new placement that moves as few of them as possible.

Pure: `reassignments.plan_moves` asks the cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from millstream.errors import MillstreamError

Replicas: TypeAlias = tuple[int, ...]


class CannotPlace(MillstreamError):
    """No placement has the properties asked for."""


def plan(
    current: Mapping[int, Replicas],
    brokers: Iterable[int],
    factor: int | None = None,
    *,
    racks: Mapping[int, str] | None = None,
) -> dict[int, Replicas]:
    """New replicas for each partition, on `brokers` only, `factor` of each (None: as many as now).

    Replicas that may stay do, where this does not put two of a partition in one rack while another
    has none. New ones go to the brokers that have fewest. The first replica of a partition, which
    is its preferred leader, stays the first if it stays; otherwise the broker that is first least
    often comes first.
    """
    allowed = sorted(set(brokers))
    if not allowed:
        raise CannotPlace("no broker is left for the replicas")
    wanted = factor if factor is not None else max(map(len, current.values()))
    if not 1 <= wanted <= len(allowed):
        raise CannotPlace(
            f"{wanted} replicas need as many brokers, and there are {len(allowed)}: "
            f"{', '.join(map(str, allowed))}"
        )
    place = _Placement(allowed, racks or {})
    kept = {
        index: place.keep([broker for broker in replicas if broker in allowed], wanted)
        for index, replicas in sorted(current.items())
    }
    for replicas in kept.values():
        place.count(replicas)
    return {
        index: place.finish(replicas, wanted, leader=current[index][0])
        for index, replicas in kept.items()
    }


class _Placement:
    """Counts what each broker has, so that the next replica goes where there is least."""

    def __init__(self, brokers: Sequence[int], racks: Mapping[int, str]) -> None:
        self._brokers = brokers
        self._racks = racks
        self._rack_count = len({self._rack(broker) for broker in brokers})
        self._replicas = Counter[int]()
        self._leaders = Counter[int]()

    def _rack(self, broker: int) -> str | int:
        return self._racks.get(broker, broker)  # without racks every broker is one

    def keep(self, replicas: Sequence[int], wanted: int) -> list[int]:
        """The first `wanted`, spread over as many racks as there can be."""
        spread = min(wanted, self._rack_count)
        kept: list[int] = []
        for broker in replicas:
            used = {self._rack(it) for it in kept}
            missing_racks = spread - len(used)
            is_new_rack = self._rack(broker) not in used
            if len(kept) < wanted and (is_new_rack or wanted - len(kept) > missing_racks):
                kept.append(broker)
        return kept

    def count(self, replicas: Sequence[int]) -> None:
        self._replicas.update(replicas)

    def finish(self, kept: list[int], wanted: int, *, leader: int) -> Replicas:
        replicas = list(kept)
        while len(replicas) < wanted:
            used = {self._rack(broker) for broker in replicas}
            free = [broker for broker in self._brokers if broker not in replicas]
            chosen = min(free, key=lambda it: (self._rack(it) in used, self._replicas[it], it))
            replicas.append(chosen)
            self._replicas[chosen] += 1
        first = leader if leader in replicas else min(replicas, key=lambda it: self._leaders[it])
        self._leaders[first] += 1
        return (first, *(broker for broker in replicas if broker != first))


def moves(current: Mapping[int, Replicas], planned: Mapping[int, Replicas]) -> dict[int, Replicas]:
    """Only the partitions whose replicas, or the order of these, differ."""
    return {index: planned[index] for index in planned if planned[index] != current[index]}
