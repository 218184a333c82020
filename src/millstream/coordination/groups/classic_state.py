"""The states of a classic group and their transitions, as data."""

from __future__ import annotations

from enum import Enum
from typing import Final


class ClassicState(Enum):
    """The states of a classic group, with their names in the protocol."""

    EMPTY = "Empty"
    """No members; it lingers while it has offsets. Also: a group that only commits offsets.

    action: join is accepted; sync, heartbeat and leave answer UNKNOWN_MEMBER_ID; commits without a
            generation are accepted; offsets can be fetched
    transition: a member joins => PREPARING_REBALANCE; deleted or expired => DEAD
    """

    PREPARING_REBALANCE = "PreparingRebalance"
    """Waits for the members to (re)join.

    action: joins wait; heartbeat and sync answer REBALANCE_IN_PROGRESS; leave removes; commits of
            the previous generation are accepted; offsets can be fetched
    transition: all have joined, or the rebalance timed out => COMPLETING_REBALANCE; nobody is left
                => EMPTY
    """

    COMPLETING_REBALANCE = "CompletingRebalance"
    """Waits for the leader's assignment.

    action: syncs wait; heartbeats are answered; a join with unchanged metadata is answered again;
            commits answer REBALANCE_IN_PROGRESS; offsets can be fetched
    transition: the leader syncs => STABLE; a member joins, leaves, dies or does not sync in
                time => PREPARING_REBALANCE
    """

    STABLE = "Stable"
    """Every member has, or can fetch, its assignment.

    action: sync answers the assignment; heartbeats and commits of this generation are accepted; a
            follower's join with unchanged metadata is answered with the current generation
    transition: a member joins, leaves or dies, or the leader rejoins => PREPARING_REBALANCE
    """

    DEAD = "Dead"
    """Deleted. Remaining references answer COORDINATOR_NOT_AVAILABLE. Final."""


_S = ClassicState
TRANSITIONS: Final[dict[ClassicState, frozenset[ClassicState]]] = {
    _S.EMPTY: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
    _S.PREPARING_REBALANCE: frozenset({_S.COMPLETING_REBALANCE, _S.EMPTY, _S.DEAD}),
    _S.COMPLETING_REBALANCE: frozenset({_S.STABLE, _S.PREPARING_REBALANCE, _S.DEAD}),
    _S.STABLE: frozenset({_S.PREPARING_REBALANCE, _S.DEAD}),
    _S.DEAD: frozenset(),
}


class InvalidTransition(Exception):
    """A transition that is not in the table: a bug in this module."""
