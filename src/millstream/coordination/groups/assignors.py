"""Server-side assignors of the consumer protocol (KIP-848).

An assignor is a pure function from the members (what each is subscribed to and was meant to own so
far) and the topics' partition counts to a new target assignment. Both give every partition of a
subscribed topic to exactly one of its subscribers. (Share groups have theirs in share_assignor.py.)

    uniform   balance first, then stickiness: loads of members with the same choice of topics
              differ by at most one, and no partition moves unless that balance needs it
    range     each topic cut into contiguous ranges over its subscribers, so that topics with as
              many partitions are co-partitioned; static members first, by instance id; not sticky

How `uniform` works. Topics with the same set of subscribers form a *pool*: within a pool any
partition is as good as any other, so a group whose members all subscribe to the same topics has a
single pool and comes out perfectly balanced. What members own and may keep stays; free partitions
go to the least loaded subscriber; then partitions move, pool by pool, from the most to the least
loaded subscriber while the two differ by more than one. Pools that overlap are balanced in turn
until a whole round moves nothing: no single move can then improve the balance (as in Apache Kafka,
a chain of moves through several members is not looked for).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from millstream.errors import ApiError, ErrorCode
from millstream.partitions import TopicIdPartition

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]

NO_PARTITIONS: Assignment = {}

# Overlapping pools converge geometrically; the limit keeps a freak group from stalling others.
_BALANCING_ROUNDS_MAX = 16


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member as an assignor sees it; `topics` exist, `assignment` is its target so far."""

    topics: frozenset[UUID]
    assignment: Assignment = field(default_factory=dict)
    instance_id: str | None = None


Members: TypeAlias = Mapping[str, Subscriber]
PartitionCounts: TypeAlias = Mapping[UUID, int]
Assignor: TypeAlias = Callable[[Members, PartitionCounts], dict[str, Assignment]]


def assign_range(members: Members, partition_counts: PartitionCounts) -> dict[str, Assignment]:
    """Contiguous ranges of every topic, the first one longer where it does not divide evenly."""
    ordered = sorted(members, key=lambda member_id: _range_order(member_id, members[member_id]))
    assignments: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in ordered}
    for subscribers, topics in _topics_by_subscribers(ordered, members):
        for topic in topics:
            share, extra = divmod(partition_counts[topic], len(subscribers))
            # With fewer partitions than members only the first ones get any.
            served = subscribers if share else subscribers[:extra]
            start = 0
            for rank, number in enumerate(served):
                end = start + share + (1 if rank < extra else 0)
                assignments[ordered[number]][topic] = frozenset(range(start, end))
                start = end
    return dict(assignments)


def _topics_by_subscribers(
    ordered: list[str], members: Members
) -> list[tuple[list[int], list[UUID]]]:
    """Topics that have the same subscribers, together; members are numbered as `ordered`.

    Members with equal subscriptions are taken as one cohort first, since most groups have only one.
    """
    cohort_by_topics: dict[frozenset[UUID], list[int]] = {}
    for number, member_id in enumerate(ordered):
        cohort_by_topics.setdefault(members[member_id].topics, []).append(number)
    cohorts = list(cohort_by_topics.values())
    cohorts_of: dict[UUID, list[int]] = {}
    for index, topics in enumerate(cohort_by_topics):
        for topic in topics:
            cohorts_of.setdefault(topic, []).append(index)
    pooled: dict[tuple[int, ...], list[UUID]] = {}
    for topic in sorted(cohorts_of):
        pooled.setdefault(tuple(cohorts_of[topic]), []).append(topic)
    return [
        (sorted(number for index in indexes for number in cohorts[index]), topics)
        for indexes, topics in pooled.items()
    ]


def _range_order(member_id: str, member: Subscriber) -> tuple[bool, str]:
    """Static members first: their place in the order survives a restart."""
    is_dynamic = member.instance_id is None
    return is_dynamic, member_id if member.instance_id is None else member.instance_id


def assign_uniform(members: Members, partition_counts: PartitionCounts) -> dict[str, Assignment]:
    """Loads as even as the subscriptions allow, moving as few partitions as that needs."""
    return _UniformAssignment(members, partition_counts).build()


@dataclass(slots=True)
class _Pool:
    """Topics with the same subscribers, and the owners of their partitions."""

    subscribers: list[int]
    topics: list[UUID]
    holdings: dict[int, list[TopicIdPartition]] = field(default_factory=dict)

    def hand_over(self, giver: int, taker: int) -> None:
        self.holdings.setdefault(taker, []).append(self.holdings[giver].pop())


class _UniformAssignment:
    """One run of the uniform assignor. Members are numbered in the order of their ids."""

    def __init__(self, members: Members, partition_counts: PartitionCounts) -> None:
        self._ids = sorted(members)
        self._members = members
        self._partition_counts = partition_counts
        self._loads = [0] * len(self._ids)
        self._changed: set[int] = set()
        self._pool_of: dict[UUID, _Pool] = {}
        self._pools = self._form_pools()

    def build(self) -> dict[str, Assignment]:
        taken = self._keep_current()
        for pool in self._pools:
            self._hand_out(pool, taken)
        for _ in range(_BALANCING_ROUNDS_MAX):
            moved = [self._balance(pool) for pool in self._pools]
            # A single pool is balanced after its only turn: nothing else disturbs it.
            if len(self._pools) == 1 or not any(moved):
                break
        return self._collect()

    def _form_pools(self) -> list[_Pool]:
        """Pools with the fewest subscribers first: they have the least choice."""
        pools = [_Pool(*pool) for pool in _topics_by_subscribers(self._ids, self._members)]
        for pool in pools:
            self._pool_of.update(dict.fromkeys(pool.topics, pool))
        return sorted(pools, key=lambda pool: len(pool.subscribers))

    def _keep_current(self) -> dict[UUID, bytearray]:
        """Let members keep what they may; returns, per topic, which partitions are taken."""
        taken = {topic: bytearray(self._partition_counts[topic]) for topic in self._pool_of}
        for number, member_id in enumerate(self._ids):
            member = self._members[member_id]
            for topic, partitions in member.assignment.items():
                if topic not in member.topics:
                    self._changed.add(number)
                    continue
                flags = taken[topic]
                held = self._pool_of[topic].holdings.setdefault(number, [])
                for partition in sorted(partitions):
                    if partition >= len(flags) or flags[partition]:
                        self._changed.add(number)
                        continue
                    flags[partition] = 1
                    held.append((topic, partition))
                    self._loads[number] += 1
        return taken

    def _hand_out(self, pool: _Pool, taken: dict[UUID, bytearray]) -> None:
        """Give the pool's free partitions, one by one, to its least loaded subscriber."""
        free = [
            (topic, partition)
            for topic in pool.topics
            for partition, is_taken in enumerate(taken[topic])
            if not is_taken
        ]
        if not free:
            return
        lightest = [(self._loads[number], number) for number in pool.subscribers]
        heapq.heapify(lightest)
        for topic_partition in free:
            load, number = lightest[0]
            pool.holdings.setdefault(number, []).append(topic_partition)
            self._loads[number] = load + 1
            self._changed.add(number)
            heapq.heapreplace(lightest, (load + 1, number))

    def _balance(self, pool: _Pool) -> bool:
        """Move the pool's partitions from heavy to light subscribers; returns whether any moved."""
        givers = self._heaviest_first(pool)
        lightest = [(self._loads[number], number) for number in pool.subscribers]
        heapq.heapify(lightest)
        moved = False
        for giver in givers:
            # Loads change under the heap's feet: its entries are set right as they surface.
            while lightest[0][0] != self._loads[lightest[0][1]]:
                number = lightest[0][1]
                heapq.heapreplace(lightest, (self._loads[number], number))
            load, taker = lightest[0]
            if self._loads[giver] - load <= 1:
                break
            pool.hand_over(giver, taker)
            self._loads[giver] -= 1
            self._loads[taker] += 1
            self._changed.update((giver, taker))
            moved = True
        return moved

    def _heaviest_first(self, pool: _Pool) -> Iterator[int]:
        """Holders of the pool's partitions by falling load, each seen again after it gave one."""
        heaviest = [
            (-self._loads[number], number) for number, held in pool.holdings.items() if held
        ]
        heapq.heapify(heaviest)
        while heaviest:
            negative_load, number = heaviest[0]
            if -negative_load != self._loads[number]:
                heapq.heapreplace(heaviest, (-self._loads[number], number))
            elif not pool.holdings[number]:
                heapq.heappop(heaviest)
            else:
                yield number

    def _collect(self) -> dict[str, Assignment]:
        partitions_of: dict[int, dict[UUID, list[int]]] = {number: {} for number in self._changed}
        for pool in self._pools:
            for number in pool.holdings.keys() & self._changed:
                for topic, partition in pool.holdings[number]:
                    partitions_of[number].setdefault(topic, []).append(partition)
        return {
            member_id: {topic: frozenset(held) for topic, held in partitions_of[number].items()}
            if number in self._changed
            else self._members[member_id].assignment
            for number, member_id in enumerate(self._ids)
        }


# Kafka's names, in Kafka's order of preference (`group.consumer.assignors`).
ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
DEFAULT_ASSIGNOR = "uniform"


def assignor_named(name: str) -> Assignor:
    try:
        return ASSIGNORS[name]
    except KeyError:
        supported = ", ".join(ASSIGNORS)
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {name} is not supported. Supported assignors: {supported}.",
        ) from None
