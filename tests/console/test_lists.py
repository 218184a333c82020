"""Lists: searched, sorted, paged."""

from __future__ import annotations

import pytest

from millstream.console.lists import SIZE_DEFAULT, SIZE_MAX, Listed, Wanted, listed

ROWS = [("b", 2), ("a", 3), ("C", None), ("ab", 1)]


def of(**parameters: str) -> Listed[tuple[str, int | None]]:
    return listed(
        ROWS,
        Wanted.of(parameters),
        text=lambda row: row[0],
        keys={"name": lambda row: row[0].casefold(), "size": lambda row: row[1]},
        default="name",
    )


def names(found: Listed[tuple[str, int | None]]) -> list[str]:
    return [name for name, _ in found.rows]


def test_default_order_is_used_for_unknown_columns() -> None:
    assert names(of()) == names(of(sort="nothing")) == ["a", "ab", "b", "C"]
    assert of(sort="nothing").sort == "name"


def test_missing_values_come_last_in_both_orders() -> None:
    assert names(of(sort="size")) == ["ab", "b", "a", "C"]
    assert names(of(sort="-size")) == ["a", "b", "ab", "C"]


def test_search_ignores_case_and_needs_all_words() -> None:
    assert names(of(q="A")) == ["a", "ab"]
    assert names(of(q="a b")) == ["ab"]
    assert of(q="A").total == 4
    assert of(q="A").found == 2


def test_pages_are_cut_and_clamped() -> None:
    found = of(size="3", page="2")
    assert names(found) == ["C"]
    assert (found.first, found.last, found.pages) == (4, 4, 2)
    assert names(of(size="3", page="99")) == ["C"]
    assert (of(q="zzz").first, of(q="zzz").last, of(q="zzz").pages) == (0, 0, 1)


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "٣", "1e3", "9" * 50])
def test_numbers_that_make_no_sense_have_no_effect(text: str) -> None:
    wanted = Wanted.of({"page": text, "size": text})
    assert wanted.page == 1
    assert wanted.size in (SIZE_DEFAULT, 1)


def test_size_is_bounded() -> None:
    assert Wanted.of({"size": "100000"}).size == SIZE_MAX
    assert len(Wanted.of({"q": "x" * 10_000}).q) == 300
