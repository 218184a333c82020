"""New placements: as few moves as possible, evenly, over all racks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.admin.placement import CannotPlace, Replicas, moves, plan


def brokers(at_least: int = 1) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(1, 9), min_size=at_least, max_size=6, unique=True)


def test_nothing_moves_where_nothing_has_to() -> None:
    current = {0: (1, 2), 1: (2, 3), 2: (3, 1)}
    assert moves(current, plan(current, [1, 2, 3])) == {}


def test_a_broker_is_emptied() -> None:
    current = {0: (1, 2), 1: (2, 3), 2: (3, 1)}
    planned = plan(current, [1, 2, 4])
    assert planned == {0: (1, 2), 1: (2, 4), 2: (4, 1)}
    assert moves(current, planned).keys() == {1, 2}


def test_more_replicas_go_where_there_are_fewest() -> None:
    planned = plan({0: (1,), 1: (1,), 2: (1,)}, [1, 2, 3], 2)
    assert [replicas[0] for replicas in planned.values()] == [1, 1, 1]
    assert Counter(replicas[1] for replicas in planned.values()) in ({2: 2, 3: 1}, {2: 1, 3: 2})


def test_fewer_replicas_keep_the_leader() -> None:
    assert plan({0: (2, 3, 1)}, [1, 2, 3], 1) == {0: (2,)}


def test_new_leaders_are_spread() -> None:
    current = dict.fromkeys(range(4), (9,))
    assert Counter(r[0] for r in plan(current, [1, 2]).values()) == {1: 2, 2: 2}


def test_racks_are_used_before_brokers_of_the_same_rack() -> None:
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    planned = plan({0: (1, 2)}, [1, 2, 3, 4], racks=racks)
    assert {racks[broker] for broker in planned[0]} == {"a", "b"}
    assert planned[0][0] == 1


@pytest.mark.parametrize("factor", [0, 3])
def test_impossible_factors_are_refused(factor: int) -> None:
    with pytest.raises(CannotPlace, match="2: 1, 2"):
        plan({0: (1,)}, [1, 2], factor)


def test_no_broker_is_refused() -> None:
    with pytest.raises(CannotPlace, match="no broker"):
        plan({0: (1,)}, [])


@given(st.data())
def test_every_placement_is_valid_and_minimal(data: st.DataObject) -> None:
    known = data.draw(brokers())
    factor = data.draw(st.integers(1, len(known)))
    current: dict[int, Replicas] = {
        index: tuple(data.draw(st.permutations(known))[:factor])
        for index in range(data.draw(st.integers(1, 8)))
    }
    allowed = data.draw(brokers(at_least=factor))
    planned = plan(current, allowed)
    for index, replicas in planned.items():
        assert len(set(replicas)) == len(replicas) == factor
        assert set(replicas) <= set(allowed)
        stays = set(current[index]) & set(allowed)
        assert stays <= set(replicas), "without racks, whatever may stay stays"
    assert plan(planned, allowed) == planned, "a second plan moves nothing"
