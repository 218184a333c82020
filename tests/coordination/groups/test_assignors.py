"""Properties of the server-side assignors: nothing lost, nothing doubled, even, and calm."""

from __future__ import annotations

import random
from collections import Counter
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.groups.assignors import (
    ASSIGNORS,
    Assignment,
    Subscriber,
    assign_range,
    assign_uniform,
    assignor_named,
)
from millstream.errors import ApiError, ErrorCode


def topic(number: int) -> UUID:
    return UUID(int=number + 1)


def owners(assignments: dict[str, Assignment]) -> Counter[tuple[UUID, int]]:
    return Counter(
        (topic_id, partition)
        for assignment in assignments.values()
        for topic_id, partitions in assignment.items()
        for partition in partitions
    )


def load(assignment: Assignment) -> int:
    return sum(len(partitions) for partitions in assignment.values())


def kept(before: dict[str, Assignment], after: dict[str, Assignment]) -> int:
    return sum(
        len(partitions & before.get(member_id, {}).get(topic_id, frozenset()))
        for member_id, assignment in after.items()
        for topic_id, partitions in assignment.items()
    )


def homogeneous(
    member_ids: list[str], counts: dict[UUID, int], current: dict[str, Assignment]
) -> dict[str, Subscriber]:
    topics = frozenset(counts)
    return {member_id: Subscriber(topics, current.get(member_id, {})) for member_id in member_ids}


partition_counts = st.lists(st.integers(1, 12), min_size=1, max_size=5).map(
    lambda counts: {topic(number): count for number, count in enumerate(counts)}
)


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, Subscriber], dict[UUID, int]]:
    """Members with any subscriptions and any earlier target, even one that no longer fits."""
    counts = draw(partition_counts)
    names = [f"m{number}" for number in range(draw(st.integers(1, 6)))]
    topics = st.frozensets(st.sampled_from(sorted(counts)), max_size=len(counts))
    gone = topic(99)
    held: dict[str, dict[UUID, set[int]]] = {name: {} for name in names}
    for topic_id in [*counts, gone]:
        for partition in range(counts.get(topic_id, 2) + 1):
            owner = draw(st.sampled_from([*names, None]))
            if owner is not None:
                held[owner].setdefault(topic_id, set()).add(partition)
    members = {
        name: Subscriber(
            draw(topics), {t: frozenset(partitions) for t, partitions in held[name].items()}
        )
        for name in names
    }
    return members, counts


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(group=groups())
def test_assignor_gives_each_partition_once_to_a_subscriber(
    name: str, group: tuple[dict[str, Subscriber], dict[UUID, int]]
) -> None:
    members, counts = group
    result = ASSIGNORS[name](members, counts)
    assert result.keys() == members.keys()
    wanted = frozenset().union(*(member.topics for member in members.values()))
    expected = Counter((t, partition) for t in wanted for partition in range(counts[t]))
    assert owners(result) == expected
    for member_id, assignment in result.items():
        assert assignment.keys() <= members[member_id].topics
        assert all(assignment.values()), "a topic with no partitions must be left out"


@given(group=groups())
def test_uniform_leaves_no_single_move_that_would_balance_better(
    group: tuple[dict[str, Subscriber], dict[UUID, int]],
) -> None:
    members, counts = group
    result = assign_uniform(members, counts)
    for assignment in result.values():
        for topic_id in assignment:
            takers = [name for name, member in members.items() if topic_id in member.topics]
            assert all(load(assignment) - load(result[taker]) <= 1 for taker in takers)


@given(counts=partition_counts, sizes=st.tuples(st.integers(1, 8), st.integers(1, 8)))
def test_uniform_moves_only_what_balance_needs_when_members_come_and_go(
    counts: dict[UUID, int], sizes: tuple[int, int]
) -> None:
    before_ids = [f"m{number}" for number in range(sizes[0])]
    after_ids = [f"m{number}" for number in range(sizes[1])]
    before = assign_uniform(homogeneous(before_ids, counts, {}), counts)
    after = assign_uniform(homogeneous(after_ids, counts, before), counts)
    loads = [load(assignment) for assignment in after.values()]
    assert max(loads) - min(loads) <= 1
    assert kept(before, after) == most_that_can_be_kept(before, after_ids, sum(counts.values()))


def most_that_can_be_kept(before: dict[str, Assignment], after_ids: list[str], total: int) -> int:
    """With the extra slots going to those who already fill them, nobody can keep more than this."""
    share, extra = divmod(total, len(after_ids))
    held = sorted((load(before.get(member_id, {})) for member_id in after_ids), reverse=True)
    return sum(min(owned, share + 1 if rank < extra else share) for rank, owned in enumerate(held))


@given(group=groups())
def test_uniform_is_a_fixed_point_when_nothing_changes(
    group: tuple[dict[str, Subscriber], dict[UUID, int]],
) -> None:
    members, counts = group
    first = assign_uniform(members, counts)
    again = {name: Subscriber(member.topics, first[name]) for name, member in members.items()}
    assert assign_uniform(again, counts) == first


def test_uniform_spreads_new_partitions_when_a_topic_grows() -> None:
    before = assign_uniform(homogeneous(["a", "b"], {topic(0): 2}, {}), {topic(0): 2})
    after = assign_uniform(homogeneous(["a", "b"], {topic(0): 6}, before), {topic(0): 6})
    assert kept(before, after) == 2
    assert [load(assignment) for assignment in after.values()] == [3, 3]


def test_uniform_chains_through_overlapping_subscriptions() -> None:
    counts = {topic(0): 4, topic(1): 4}
    members = {
        "both": Subscriber(frozenset(counts)),
        "only-first": Subscriber(frozenset({topic(0)})),
    }
    result = assign_uniform(members, counts)
    assert result["both"] == {topic(1): frozenset(range(4))}
    assert result["only-first"] == {topic(0): frozenset(range(4))}


def test_range_co_partitions_topics_of_equal_size() -> None:
    counts = {topic(0): 3, topic(1): 3}
    result = assign_range(homogeneous(["m0", "m1"], counts, {}), counts)
    assert result["m0"] == {topic(0): frozenset({0, 1}), topic(1): frozenset({0, 1})}
    assert result["m1"] == {topic(0): frozenset({2}), topic(1): frozenset({2})}


def test_range_puts_static_members_first_by_instance_id() -> None:
    counts = {topic(0): 3}
    members = {
        "a": Subscriber(frozenset(counts)),
        "b": Subscriber(frozenset(counts), instance_id="two"),
        "c": Subscriber(frozenset(counts), instance_id="one"),
    }
    result = assign_range(members, counts)
    assert [min(result[name][topic(0)]) for name in ("c", "b", "a")] == [0, 1, 2]


def test_range_leaves_members_empty_when_there_are_more_of_them_than_partitions() -> None:
    counts = {topic(0): 2}
    result = assign_range(homogeneous(["a", "b", "c"], counts, {}), counts)
    assert [load(result[name]) for name in "abc"] == [1, 1, 0]


def test_assignor_named_refuses_an_unknown_name() -> None:
    with pytest.raises(ApiError, match="Supported assignors: uniform, range") as refused:
        assignor_named("sticky")
    assert refused.value.code is ErrorCode.UNSUPPORTED_ASSIGNOR


@pytest.mark.parametrize("seed", range(5))
def test_uniform_balances_large_mixed_groups(seed: int) -> None:
    chance = random.Random(seed)
    counts = {topic(number): chance.randint(1, 40) for number in range(30)}
    members = {
        f"m{number}": Subscriber(frozenset(chance.sample(sorted(counts), chance.randint(1, 30))))
        for number in range(60)
    }
    result = assign_uniform(members, counts)
    for assignment in result.values():
        for topic_id in assignment:
            takers = [name for name, member in members.items() if topic_id in member.topics]
            assert all(load(assignment) - load(result[taker]) <= 1 for taker in takers), seed


def test_uniform_moves_nine_partitions_for_one_member_more_in_a_large_group() -> None:
    counts = {topic(number): 100 for number in range(100)}
    names = [f"m{number:04}" for number in range(1000)]
    before = assign_uniform(homogeneous(names, counts, {}), counts)
    assert {load(assignment) for assignment in before.values()} == {10}
    after = assign_uniform(homogeneous([*names, "new"], counts, before), counts)
    assert load(after["new"]) == 9
    assert kept(before, after) == 10_000 - 9
