"""The table of transitions."""

from __future__ import annotations

import pytest

from millstream.coordination.groups.classic import ClassicGroup
from millstream.coordination.groups.classic_state import (
    TRANSITIONS,
    ClassicState,
    InvalidTransition,
)
from millstream.coordination.groups.group import GroupContext, GroupSettings, NoTopics


def test_every_state_has_its_transitions() -> None:
    assert set(TRANSITIONS) == set(ClassicState)
    assert TRANSITIONS[ClassicState.DEAD] == frozenset()
    for state in set(ClassicState) - {ClassicState.DEAD}:
        assert ClassicState.DEAD in TRANSITIONS[state]


def test_move_that_the_table_does_not_have_is_a_mistake() -> None:
    group = ClassicGroup("g", GroupContext(GroupSettings(), NoTopics()))
    with pytest.raises(InvalidTransition):
        group._move_to(ClassicState.STABLE, 0)
    group._move_to(ClassicState.PREPARING_REBALANCE, 0)
    assert group.state is ClassicState.PREPARING_REBALANCE
