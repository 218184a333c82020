"""Which stamps of several queries stand for the same records."""

from __future__ import annotations

import itertools
import random

import pytest

from millstream.views.cuts import common_cut, fit, next_cut
from millstream.views.spec import Stamp


def stamp(number: int, topic_id: str = "id", **offsets: int) -> Stamp:
    ids = dict.fromkeys(offsets, topic_id)
    return Stamp({(topic, 0): it for topic, it in offsets.items()}, ids, {"q": number})


def test_newest_common_cut_is_chosen() -> None:
    one = [stamp(1, orders=2), stamp(2, orders=4), stamp(3, orders=6), stamp(4, orders=7)]
    two = [stamp(1, orders=4), stamp(2, orders=6), stamp(3, orders=9)]
    assert common_cut([one, two]) == [one[2], two[1]]
    assert common_cut([one, two, [stamp(1, users=5)]]) == [one[2], two[1], stamp(1, users=5)]
    assert common_cut([one[:1], two]) is None


def test_only_shared_topics_count() -> None:
    assert fit(stamp(1, orders=2, users=1), stamp(1, orders=2, stock=9))
    assert not fit(stamp(1, orders=2, users=1), stamp(1, orders=2, users=2))


def test_partition_that_one_has_not_read_is_at_its_beginning() -> None:
    later = Stamp({("orders", 0): 2, ("orders", 1): 0}, {"orders": "id"})
    assert fit(stamp(1, orders=2), later)
    assert not fit(
        stamp(1, orders=2), Stamp({("orders", 0): 2, ("orders", 1): 1}, {"orders": "id"})
    )


def test_recreated_topic_is_another() -> None:
    assert not fit(stamp(1, orders=2), stamp(1, topic_id="other", orders=2))


def numbered(number: int, offset: int) -> Stamp:
    return Stamp({("t", 0): offset}, {"t": "id"}, {"q": number})


def test_next_cut_has_the_highest_power_of_two_behind_the_last() -> None:
    leader = [numbered(it, 10 * it) for it in range(1, 13)]

    def after(offset: int, newest: int) -> int | None:
        found = next_cut(leader[:newest], Stamp({("t", 0): offset}), {"t"})
        return None if found is None else found.numbers["q"]

    assert [after(0, it) for it in (1, 2, 3, 12)] == [1, 2, 2, 8]
    assert [after(80, 12), after(85, 12), after(120, 12)] == [12, 12, None]
    assert after(110, 11) is None


def test_topics_that_a_query_does_not_read_are_no_reason_for_a_cut() -> None:
    leader = [Stamp({("t", 0): 5, ("u", 0): it}, {}, {"q": it}) for it in range(1, 5)]
    assert next_cut(leader, Stamp({("t", 0): 5}), {"t"}) is None


@pytest.mark.parametrize("seed", range(20))
def test_queries_in_step_have_a_cut_in_common_within_a_bound(seed: int) -> None:
    """Two queries follow a leader that never pauses. Each needs up to four of its batches for one
    of their own: they meet at every eighth batch of the leader."""
    rng = random.Random(seed)
    leader: list[Stamp] = []
    seen: list[set[int]] = [{0}, {0}]
    reached = [Stamp({("t", 0): 0}), Stamp({("t", 0): 0})]
    busy_until: list[tuple[int, Stamp | None]] = [(0, None), (0, None)]
    for number in range(1, 200):
        leader.append(numbered(number, number * 7))
        for query in (0, 1):
            until, target = busy_until[query]
            if number < until:
                continue
            if target is not None:
                reached[query] = target
                seen[query].add(target.numbers["q"])
            target = next_cut(leader, reached[query], {"t"})
            busy_until[query] = (number + rng.randint(1, 4), target)
    common = sorted(seen[0] & seen[1])
    assert max(b - a for a, b in itertools.pairwise(common)) <= 8
