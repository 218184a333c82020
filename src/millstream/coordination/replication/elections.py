"""Leaders and in-sync sets of single partitions, as the controller decides them.

`decide` returns the state that a partition should have while these brokers are active:

- The in-sync set keeps its active members, and those that are known to have kept their records
  (`keeps`). If none is left it stays as it is: its members have all committed records, and one of
  them has to return.
- The leader stays if it is active and in sync. Else the first active replica of the assignment
  that is in sync leads. If there is none, an unclean election takes the first active replica,
  which may lose records; without permission for that, the partition has no leader.
- A reassignment completes once all added replicas are in sync.

A change of the leader, an unclean election, and the removal of a replica bump the leader epoch.
`record_for` writes the difference of two states as one record.
"""

from __future__ import annotations

import uuid
from collections.abc import Container
from typing import NamedTuple

from millstream.coordination.cluster import RECOVERED, RECOVERING, PartitionImage
from millstream.coordination.cluster_records import (
    DIRECTORY_UNASSIGNED,
    NO_LEADER,
    PartitionChangeRecord,
)


class PartitionState(NamedTuple):
    """What is decided about a partition."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED
    directories: tuple[uuid.UUID, ...] = ()

    @classmethod
    def of(cls, partition: PartitionImage) -> PartitionState:
        return cls(
            partition.replicas,
            partition.isr,
            partition.leader,
            partition.adding_replicas,
            partition.removing_replicas,
            partition.leader_recovery_state,
            partition.directories,
        )


def decide(
    state: PartitionState,
    active: Container[int],
    *,
    keeps: Container[int] = (),
    is_unclean_allowed: bool = False,
    prefers_first: bool = False,
) -> PartitionState:
    """What the partition should be. With `prefers_first`, the first replica leads if it can."""
    isr = tuple(it for it in state.isr if it in active or it in keeps) or state.isr
    state = _complete_reassignment(state._replace(isr=isr))
    candidates = [it for it in state.replicas if it in active and it in state.isr]
    leader = state.leader
    if leader not in candidates or (prefers_first and state.replicas[0] in candidates):
        leader = candidates[0] if candidates else NO_LEADER
    if leader == NO_LEADER and is_unclean_allowed:
        return _complete_reassignment(_elect_unclean(state, active))
    return state._replace(leader=leader)


def record_for(
    topic_id: uuid.UUID, index: int, before: PartitionImage, after: PartitionState
) -> PartitionChangeRecord | None:
    """The record that makes `after` of `before`; None if they are equal."""
    now = PartitionState.of(before)
    if after == now:
        return None
    must_bump = after.leader != now.leader or not set(now.replicas) <= set(after.replicas)
    recovery = after.leader_recovery_state
    return PartitionChangeRecord(
        partition_id=index,
        topic_id=topic_id,
        isr=_if_new(after.isr, now.isr),
        replicas=_if_new(after.replicas, now.replicas),
        adding_replicas=_if_new(after.adding_replicas, now.adding_replicas),
        removing_replicas=_if_new(after.removing_replicas, now.removing_replicas),
        leader_recovery_state=-1 if recovery == now.leader_recovery_state else recovery,
        directories=None if after.directories == now.directories else after.directories,
        **({"leader": after.leader} if must_bump else {}),
    )


def with_replicas(state: PartitionState, replicas: tuple[int, ...]) -> PartitionState:
    """The same with these replicas; the directory of a new one is not known."""
    directories = dict(zip(state.replicas, state.directories, strict=False))
    return state._replace(
        replicas=replicas,
        directories=(
            tuple(directories.get(replica, DIRECTORY_UNASSIGNED) for replica in replicas)
            if state.directories
            else ()
        ),
    )


def _complete_reassignment(state: PartitionState) -> PartitionState:
    if not state.adding_replicas and not state.removing_replicas:
        return state
    isr = tuple(member for member in state.isr if member not in state.removing_replicas)
    if not isr or not set(state.adding_replicas) <= set(isr):
        return state
    replicas = tuple(it for it in state.replicas if it not in state.removing_replicas)
    completed = with_replicas(state, replicas)
    return completed._replace(isr=isr, adding_replicas=(), removing_replicas=())


def _elect_unclean(state: PartitionState, active: Container[int]) -> PartitionState:
    for replica in state.replicas:
        if replica in active:
            return state._replace(leader=replica, isr=(replica,), leader_recovery_state=RECOVERING)
    return state._replace(leader=NO_LEADER)


def _if_new(value: tuple[int, ...], before: tuple[int, ...]) -> tuple[int, ...] | None:
    return None if value == before else value
