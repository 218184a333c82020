"""Properties of the assignor of share groups: nothing left out, even, and calm."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.groups.assignors import Assignment, Subscriber
from millstream.coordination.groups.share_assignor import assign_simple

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)
TOPICS = (A, B, C)

assignable_partitions = st.dictionaries(
    st.sampled_from(TOPICS), st.frozensets(st.integers(0, 9), max_size=10)
)
member_ids = st.lists(st.sampled_from("abcdefghijklmnop"), unique=True, min_size=1, max_size=16)
old_targets = st.dictionaries(
    st.sampled_from(TOPICS), st.frozensets(st.integers(0, 11)), max_size=3
)


def members(
    ids: list[str], topics: frozenset[UUID], before: dict[str, Assignment] | None = None
) -> dict[str, Subscriber]:
    return {m: Subscriber(topics, (before or {}).get(m, {})) for m in ids}


def holders(targets: dict[str, Assignment]) -> Counter[tuple[UUID, int]]:
    return Counter(
        (t, partition)
        for target in targets.values()
        for t, partitions in target.items()
        for partition in partitions
    )


def load(target: Assignment) -> int:
    return sum(map(len, target.values()))


@given(ids=member_ids, assignable=assignable_partitions, data=st.data())
def test_simple_is_even_when_all_subscribe_to_the_same(
    ids: list[str], assignable: dict[UUID, frozenset[int]], data: st.DataObject
) -> None:
    before = {m: data.draw(old_targets) for m in ids}
    targets = assign_simple(members(ids, frozenset(TOPICS), before), assignable)
    wanted = {(t, p) for t, partitions in assignable.items() for p in partitions}
    shared = holders(targets)
    assert set(shared) == wanted
    assert len(set(shared.values())) <= 1
    loads = [load(target) for target in targets.values()]
    assert max(loads) - min(loads) <= 1
    assert not wanted or min(loads) >= 1
    # Every partition has just as many holders as it takes for everybody to have one.
    assert all(count == -(-len(ids) // len(wanted)) for count in shared.values())


@given(ids=member_ids, assignable=assignable_partitions, data=st.data())
def test_simple_leaves_nothing_and_nobody_out_when_subscriptions_differ(
    ids: list[str], assignable: dict[UUID, frozenset[int]], data: st.DataObject
) -> None:
    group = {
        m: Subscriber(
            data.draw(st.frozensets(st.sampled_from(TOPICS), min_size=1)), data.draw(old_targets)
        )
        for m in ids
    }
    targets = assign_simple(group, assignable)
    assert targets.keys() == group.keys()
    for t in TOPICS:
        subscribers = [m for m in ids if t in group[m].topics]
        assert all(t not in targets[m] for m in ids if m not in subscribers)
        partitions = assignable.get(t, frozenset())
        if subscribers:
            given_out = frozenset().union(*(targets[m].get(t, frozenset()) for m in subscribers))
            assert given_out == partitions
    for m in ids:
        assert targets[m] or not any(assignable.get(t) for t in group[m].topics)


@given(ids=member_ids, assignable=assignable_partitions)
def test_simple_moves_nothing_when_nothing_changed(
    ids: list[str], assignable: dict[UUID, frozenset[int]]
) -> None:
    first = assign_simple(members(ids, frozenset(TOPICS)), assignable)
    assert assign_simple(members(ids, frozenset(TOPICS), first), assignable) == first


def test_simple_moves_only_what_a_new_member_needs() -> None:
    assignable = {A: frozenset(range(9))}
    before = assign_simple(members(["m1", "m2"], frozenset({A})), assignable)
    after = assign_simple(members(["m1", "m2", "m3"], frozenset({A}), before), assignable)
    assert [load(after[m]) for m in ("m1", "m2", "m3")] == [3, 3, 3]
    assert all(after[m][A] < before[m][A] for m in ("m1", "m2"))


def test_simple_swaps_where_only_holders_have_room() -> None:
    # m1 and m2 take the places of partition 0. The second one of partition 1 is left, and the only
    # member with room is m3, who has partition 1 already.
    before: dict[str, Assignment] = {"m3": {A: frozenset({1})}}
    group = members(["m1", "m2", "m3"], frozenset({A}), before)
    targets = assign_simple(group, {A: frozenset({0, 1})})
    assert targets == {
        "m1": {A: frozenset({1})},
        "m2": {A: frozenset({0})},
        "m3": {A: frozenset({0, 1})},
    }


def test_simple_gives_nothing_that_is_not_assignable() -> None:
    before: dict[str, Assignment] = {"m": {A: frozenset({0, 1}), B: frozenset({0})}}
    targets = assign_simple(members(["m"], frozenset({A}), before), {A: frozenset({1})})
    assert targets == {"m": {A: frozenset({1})}}
    assert assign_simple(members(["m"], frozenset({A})), {}) == {"m": {}}
    assert assign_simple({}, {A: frozenset({0})}) == {}
