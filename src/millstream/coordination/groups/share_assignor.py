"""The assignor of share groups, `simple`.

Partitions are shared: where there are more members than partitions, several members are given the
same one. As in Apache Kafka,

    every assignable partition of a subscribed topic is given to a subscriber, and every member is
    given a partition, if its topics have any
    the numbers of partitions of two members differ by at most one, as do the numbers of members of
    two partitions
    beyond that, members keep what they have

How it works. With M members and P partitions every partition is to have ceil(M / P) holders, which
makes a number of places; the members' quotas of them differ by at most one. What members have is
kept within quotas and places; then free places go to the members with the most room. When the only
members with room hold the partition already, one of them swaps: another member takes the place, and
gives it one of its own. (Kafka leaves such a place empty.)

If all members subscribe to the same topics, the partitions of all topics are handed out together;
otherwise each topic by itself over its subscribers, and only there the numbers are even.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from uuid import UUID

from millstream.coordination.groups.assignors import Assignment, Members
from millstream.partitions import TopicIdPartition

SIMPLE_ASSIGNOR = "simple"


def assign_simple(
    members: Members, assignable: Mapping[UUID, AbstractSet[int]]
) -> dict[str, Assignment]:
    """The target of every member; only of topics that exist and partitions that are assignable."""
    held: dict[str, set[TopicIdPartition]] = {member_id: set() for member_id in members}
    for subscribers, topics in _pools(members):
        places = [(t, p) for t in sorted(topics) for p in sorted(assignable.get(t, ()))]
        before = {m: _flat(members[m].assignment) for m in subscribers}
        for member_id, partitions in _share_out(places, before).items():
            held[member_id] |= partitions
    return {member_id: _by_topic(partitions) for member_id, partitions in held.items()}


def _pools(members: Members) -> Iterable[tuple[list[str], Iterable[UUID]]]:
    """Partitions that are assigned together, and their members."""
    subscriptions = {subscriber.topics for subscriber in members.values()}
    if len(subscriptions) == 1:
        return [(sorted(members), subscriptions.pop())]
    topics = sorted(frozenset().union(*subscriptions))
    return [([m for m in sorted(members) if t in members[m].topics], [t]) for t in topics]


def _share_out(
    places: list[TopicIdPartition], before: Mapping[str, set[TopicIdPartition]]
) -> dict[str, set[TopicIdPartition]]:
    """Assign the partitions to the members in `before`, which keep theirs where possible."""
    if not places or not before:
        return {member_id: set() for member_id in before}
    holders_each = -(-len(before) // len(places))
    # Members with the most partitions get the larger quotas, to move fewer.
    held = {m: partitions.intersection(places) for m, partitions in before.items()}
    ordered = sorted(held, key=lambda member_id: (-len(held[member_id]), member_id))
    share, extra = divmod(holders_each * len(places), len(ordered))
    room = {m: share + (rank < extra) - len(held[m]) for rank, m in enumerate(ordered)}
    holders: dict[TopicIdPartition, set[str]] = {place: set() for place in places}
    for member_id, partitions in held.items():
        for partition in partitions:
            holders[partition].add(member_id)
    handing = _Handing(held, holders, room)
    handing.take_from_overfull(holders_each)
    handing.fill(holders_each)
    return held


class _Handing:
    """One run: current holders, and how many more (or fewer, if negative) each needs."""

    def __init__(
        self,
        held: dict[str, set[TopicIdPartition]],
        holders: dict[TopicIdPartition, set[str]],
        room: dict[str, int],
    ) -> None:
        self._held = held
        self._holders = holders
        self._room = room

    def take_from_overfull(self, holders_each: int) -> None:
        """Back to quotas and places: first what others hold, too."""
        for partition, its_holders in self._holders.items():
            while len(its_holders) > holders_each:
                self._move(partition, giver=min(its_holders, key=lambda m: (self._room[m], m)))
        for member_id, room in self._room.items():
            if room < 0:
                crowded_first = sorted(
                    self._held[member_id], key=lambda p: (-len(self._holders[p]), p)
                )
                for partition in crowded_first[:-room]:
                    self._move(partition, giver=member_id)

    def fill(self, holders_each: int) -> None:
        """Hand out the free places, those of the loneliest partitions first."""
        roomiest = [(-room, m) for m, room in self._room.items() if room > 0]
        heapq.heapify(roomiest)
        for partition in sorted(self._holders, key=lambda p: (len(self._holders[p]), p)):
            while len(self._holders[partition]) < holders_each:
                self._fill_place(partition, roomiest)

    def _fill_place(self, partition: TopicIdPartition, roomiest: list[tuple[int, str]]) -> None:
        passed_over = []
        while roomiest and roomiest[0][1] in self._holders[partition]:
            passed_over.append(heapq.heappop(roomiest))
        if roomiest:
            _, taker = heapq.heappop(roomiest)
            self._move(partition, taker=taker)
        else:
            _, taker = passed_over.pop(0)
            self._swap_in(partition, taker)
        for entry in passed_over:
            heapq.heappush(roomiest, entry)
        if self._room[taker] > 0:
            heapq.heappush(roomiest, (-self._room[taker], taker))

    def _swap_in(self, partition: TopicIdPartition, taker: str) -> None:
        """The taker holds it already: another takes the place, and gives one that it has.

        There is one. A member that does not hold the partition is full, or it would have taken the
        place; the taker is not, and holds this partition, too; and quotas differ by at most one.
        """
        giver = min(m for m in self._held if partition not in self._held[m])
        given = min(self._held[giver] - self._held[taker])
        self._move(given, giver=giver, taker=taker)
        self._move(partition, taker=giver)

    def _move(
        self, partition: TopicIdPartition, *, giver: str | None = None, taker: str | None = None
    ) -> None:
        if giver is not None:
            self._held[giver].remove(partition)
            self._holders[partition].remove(giver)
            self._room[giver] += 1
        if taker is not None:
            self._held[taker].add(partition)
            self._holders[partition].add(taker)
            self._room[taker] -= 1


def _flat(assignment: Assignment) -> set[TopicIdPartition]:
    return {(t, partition) for t, partitions in assignment.items() for partition in partitions}


def _by_topic(partitions: set[TopicIdPartition]) -> dict[UUID, frozenset[int]]:
    topics: dict[UUID, set[int]] = {}
    for topic_id, partition in partitions:
        topics.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(held) for topic_id, held in topics.items()}
