"""A write is applied only where it begins."""

from __future__ import annotations

import pytest

from millstream.connect.sinks.positions import Place, Position, PositionMoved, Step, check_steps

HERE = Place("orders", 0)
AT_5, AT_9 = Position("a", 5), Position("a", 9)


def test_write_that_begins_where_the_target_is_passes() -> None:
    check_steps([Step(HERE, AT_5, AT_9)], {HERE: AT_5})
    check_steps([Step(HERE, None, AT_5)], {Place("orders", 1): AT_9})
    check_steps([], {HERE: AT_5})


@pytest.mark.parametrize(
    ("before", "stored", "complaint"),
    [
        (AT_5, AT_9, "orders-0: the target is at offset 9, the write begins at offset 5"),
        (AT_9, AT_5, "at offset 5"),
        (None, AT_5, "begins at no offset"),
        (AT_5, None, "the target is at no offset"),
        (AT_5, Position("b", 5), "another process writes to it, or it was restored"),
    ],
)
def test_any_other_write_is_refused(
    before: Position | None, stored: Position | None, complaint: str
) -> None:
    found = {} if stored is None else {HERE: stored}
    with pytest.raises(PositionMoved, match=complaint):
        check_steps([Step(HERE, before, AT_9)], found)
