"""The positions that readers give."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.errors import ViewError
from millstream.views.positions import ends_of, parse_positions
from millstream.views.spec import Stamp


class Report:
    """As confluent-kafka's Message."""

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 1

    def offset(self) -> int:
        return 7


RECORD = SimpleNamespace(topic="orders", partition=0, offset=3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, {}),
        (("orders", 0, 3), {("orders", 0): 4}),
        ({("orders", 0): 3, ("users", 1): 0}, {("orders", 0): 4, ("users", 1): 1}),
        (Report(), {("orders", 1): 8}),
        ([Report(), RECORD, ("orders", 0, 1)], {("orders", 1): 8, ("orders", 0): 4}),
        (Stamp({("orders", 0): 9}), {("orders", 0): 9}),
    ],
)
def test_position_is_the_offset_behind_it(given: Any, expected: Any) -> None:
    assert ends_of(given) == expected


@pytest.mark.parametrize("bad", [7, "orders/0/3", ("orders", 0, -1), {"orders": 3}, ("a", "b", 1)])
def test_other_things_are_refused(bad: Any) -> None:
    with pytest.raises(ViewError):
        ends_of(bad)


def test_positions_in_text() -> None:
    assert parse_positions("orders:0:41, a.b:1:7") == {("orders", 0): 41, ("a.b", 1): 7}
    assert parse_positions("orders:0:41,orders:0:7") == {("orders", 0): 41}
    for bad in ("orders", "orders:0", "orders:x:1", ":0:1", "orders:0:-1", "orders:0:" + "9" * 20):
        with pytest.raises(ViewError):
            parse_positions(bad)
