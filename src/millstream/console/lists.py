"""Lists that are searched, sorted and paged on the server: `?q=orders&sort=-lag&page=2`. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from millstream.models import dataclass

SIZE_DEFAULT = 50
SIZE_MAX = 500
QUERY_CHARACTERS_MAX = 300

Row = TypeVar("Row")


@dataclass(frozen=True)
class Wanted:
    """What a request asks of a list. `sort` names a column; with `-` in front, largest first."""

    q: str = ""
    sort: str = ""
    page: int = 1
    size: int = SIZE_DEFAULT

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Wanted:
        """From the query of a request; anything that makes no sense has no effect."""
        return cls(
            q=parameters.get("q", "").strip()[:QUERY_CHARACTERS_MAX],
            sort=parameters.get("sort", "")[:QUERY_CHARACTERS_MAX],
            page=_number(parameters.get("page"), 1, 1, 10**9),
            size=_number(parameters.get("size"), SIZE_DEFAULT, 1, SIZE_MAX),
        )


@dataclass(frozen=True)
class Listed(Generic[Row]):
    """One page of a list. `found` rows match the search, of `total`."""

    rows: Sequence[Row]
    total: int
    found: int
    page: int
    pages: int
    size: int
    sort: str
    q: str

    @property
    def first(self) -> int:
        return (self.page - 1) * self.size + 1 if self.rows else 0

    @property
    def last(self) -> int:
        return (self.page - 1) * self.size + len(self.rows)


def listed(
    rows: Iterable[Row],
    wanted: Wanted,
    *,
    text: Callable[[Row], str],
    keys: Mapping[str, Callable[[Row], Any]],
    default: str,
) -> Listed[Row]:
    """The page that is wanted. `text` is searched, ignoring case; `keys` are the columns by which
    rows can be sorted, None last; `default` is the order without `sort`."""
    everything = list(rows)
    words = wanted.q.casefold().split()
    found = [row for row in everything if _has_all(text(row).casefold(), words)]
    sort = wanted.sort if wanted.sort.removeprefix("-") in keys else default
    key = keys[sort.removeprefix("-")]
    known = [row for row in found if key(row) is not None]
    known.sort(key=key, reverse=sort.startswith("-"))
    found = [*known, *(row for row in found if key(row) is None)]
    pages = max(1, -(-len(found) // wanted.size))
    page = min(wanted.page, pages)
    shown = found[(page - 1) * wanted.size : page * wanted.size]
    return Listed(shown, len(everything), len(found), page, pages, wanted.size, sort, wanted.q)


def _has_all(text: str, words: Sequence[str]) -> bool:
    return all(word in text for word in words)


def _number(text: str | None, default: int, least: int, most: int) -> int:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 12:
        return default
    return max(least, min(most, int(text)))
