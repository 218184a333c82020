"""Where the replicas of new partitions go: spread over racks and brokers, from a random start.

As Kafka does it: the racks are visited in turn, one replica in each, and each partition starts one
rack further, so that leaders and followers are spread evenly. After as many partitions as there are
brokers the order is drawn again, so that the partitions of a broker are not all followed by the
same others. Fenced brokers and those that shut down get nothing. Brokers without a rack are in a
rack of their own together.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from millstream.coordination.cluster import BrokerImage


class TooFewBrokers(Exception):
    """There are fewer usable brokers than replicas of a partition."""

    def __init__(self, factor: int, usable: int) -> None:
        super().__init__(f"{factor} replicas need as many usable brokers; there are {usable}")
        self.usable = usable


def usable_brokers(brokers: Iterable[BrokerImage]) -> dict[int, str | None]:
    """The racks of the brokers that can get replicas, by id."""
    return {broker.id: broker.rack for broker in brokers if broker.is_active}


def place(
    racks: dict[int, str | None], count: int, factor: int, random: Random
) -> list[tuple[int, ...]]:
    """The replicas of `count` partitions on these brokers; the first of each is to lead."""
    if factor > len(racks):
        raise TooFewBrokers(factor, len(racks))
    if len(racks) == 1:
        return [tuple(racks)] * count
    stripes: list[tuple[int, ...]] = []
    while len(stripes) < count:
        stripes += _stripes(_shuffled(racks, random), factor)
    return stripes[:count]


def _shuffled(racks: dict[int, str | None], random: Random) -> list[list[int]]:
    by_rack: dict[str, list[int]] = {}
    for broker_id in sorted(racks):
        by_rack.setdefault(racks[broker_id] or "", []).append(broker_id)
    shuffled = [by_rack[rack] for rack in sorted(by_rack)]
    for members in shuffled:
        random.shuffle(members)
    random.shuffle(shuffled)
    return shuffled


def _stripes(racks: list[list[int]], factor: int) -> list[tuple[int, ...]]:
    """One partition for each broker, which is its first replica."""
    placed = []
    for turn in range(max(map(len, racks))):
        for first, rack in enumerate(racks):
            if turn < len(rack):
                placed.append(_stripe(racks, first, turn, factor))
    return placed


def _stripe(racks: list[list[int]], first: int, turn: int, factor: int) -> tuple[int, ...]:
    """A replica in each rack from `first` on, the broker in each by its turn; then a second."""
    chosen: list[int] = []
    again = 0  # how often each rack had its turn
    while len(chosen) < factor:
        for step in range(len(racks)):
            rack = racks[(first + step) % len(racks)]
            if again < len(rack) and len(chosen) < factor:
                chosen.append(rack[(turn + again) % len(rack)])
        again += 1
    return tuple(chosen)
