"""Acknowledgements as they come in a request."""

from __future__ import annotations

from typing import Any

import pytest

from millstream.broker.sharing.acknowledging import Acknowledging, checked_ids, checked_ranges
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.share_fetch import Acknowledgement

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4


def ranges(
    *acks: tuple[int, int, list[int]], may_renew: bool = False
) -> list[tuple[int, int, int]]:
    named = [Acknowledgement(first, last, bytes(types)) for first, last, types in acks]
    return checked_ranges(named, may_renew=may_renew)


def test_acknowledgements_of_one_record_each_are_one_range() -> None:
    assert ranges(*[(it, it, [ACCEPT]) for it in range(500)]) == [(0, 499, ACCEPT)]


def test_types_for_each_record_are_ranges_of_one_type() -> None:
    assert ranges((5, 9, [1, 1, 2, 2, 1]), (10, 12, [1])) == [
        (5, 6, ACCEPT),
        (7, 8, RELEASE),
        (9, 12, ACCEPT),
    ]


def test_ranges_that_overlap_stay_apart() -> None:
    assert ranges((0, 4, [ACCEPT]), (4, 5, [ACCEPT])) == [(0, 4, ACCEPT), (4, 5, ACCEPT)]


@pytest.mark.parametrize(
    "acks",
    [
        [(5, 4, [ACCEPT])],
        [(5, 6, [ACCEPT]), (4, 4, [ACCEPT])],
        [(5, 6, [])],
        [(5, 7, [ACCEPT, ACCEPT])],
        [(5, 5, [RENEW])],
        [(5, 6, [ACCEPT, 255])],
    ],
)
def test_acknowledgements_that_make_no_sense_are_refused(
    acks: list[tuple[int, int, list[int]]],
) -> None:
    with pytest.raises(ApiError) as error:
        ranges(*acks)
    assert error.value.code is ErrorCode.INVALID_REQUEST


def test_renewal_is_understood_where_it_is_announced() -> None:
    assert ranges((5, 5, [RENEW]), may_renew=True) == [(5, 5, RENEW)]


@pytest.mark.parametrize(
    ("group", "member"), [(None, "m"), ("g", None), ("g", ""), ("g", "x" * 37)]
)
def test_ids_must_be_usable(group: str | None, member: str | None) -> None:
    with pytest.raises(ApiError) as error:
        checked_ids(group, member)
    assert error.value.code is ErrorCode.INVALID_REQUEST


def test_nothing_to_acknowledge_is_done_at_once() -> None:
    acknowledging = Acknowledging()
    leaders: Any = None  # not asked
    acknowledging.start(leaders, "g", "m", [], may_renew=False, require_right=lambda _: None)
    assert acknowledging.is_done
    assert acknowledging.results == {}
