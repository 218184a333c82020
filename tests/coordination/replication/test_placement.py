"""Placement: racks, balance, brokers that are left out."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.replication.placement import (
    TooFewBrokers,
    place,
    usable_brokers,
)
from tests.coordination.replication.images import applied, image, registration


@given(
    st.dictionaries(st.integers(0, 20), st.sampled_from([None, "a", "b", "c"]), min_size=1),
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(0, 100),
)
def test_replicas_are_different_brokers_in_as_many_racks_as_there_are(
    racks: dict[int, str | None], count: int, factor: int, seed: int
) -> None:
    factor = min(factor, len(racks))
    placed = place(racks, count, factor, Random(seed))
    assert len(placed) == count
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert set(replicas) <= set(racks)
        used = {racks[replica] for replica in replicas}
        assert len(used) == min(factor, len(set(racks.values())))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders[broker] for broker in racks) <= 1


def test_start_is_random_and_repeats_with_the_seed() -> None:
    racks = dict.fromkeys(range(6))
    drawn = {tuple(place(racks, 1, 3, Random(seed))) for seed in range(40)}
    assert len(drawn) > 10
    assert place(racks, 9, 3, Random(5)) == place(racks, 9, 3, Random(5))


def test_equal_racks_get_equally_many_replicas() -> None:
    racks: dict[int, str | None] = {broker: "ab"[broker % 2] for broker in range(4)}
    placed = place(racks, 40, 2, Random(1))
    assert set(Counter(broker for replicas in placed for broker in replicas).values()) == {20}


def test_one_broker_gets_everything() -> None:
    assert place({7: None}, 3, 1, Random()) == [(7,)] * 3


def test_too_few_brokers_are_refused() -> None:
    with pytest.raises(TooFewBrokers, match="3 replicas need as many usable brokers; there are 2"):
        place({1: None, 2: None}, 1, 3, Random())


def test_fenced_brokers_and_those_shutting_down_are_left_out() -> None:
    fenced = registration(1)._replace(fenced=True)
    leaving = registration(2)._replace(in_controlled_shutdown=True)
    there = registration(3, rack="r")
    now = applied(image(0), [fenced, leaving, there])
    assert usable_brokers(now.brokers.values()) == {3: "r"}
