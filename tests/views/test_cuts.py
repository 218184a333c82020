"""Which stamps of several queries stand for the same records."""

from __future__ import annotations

from millstream.views.cuts import common_cut, fit
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
