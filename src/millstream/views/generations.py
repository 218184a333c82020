"""Generations of a query: other views are built beside those that readers read, and replace them.

Spark's state belongs to one plan, so a query cannot be given another view. A query whose views
change is built again from the beginning, by another name and into other tables, while the earlier
generation goes on:

    shop       by_user                  the first generation
    shop+2     by_user__2, leaders__2   the second one: it is not listed for readers of `shop`

Readers read what `millstream_views` lists for `shop`; each entry names the query that writes it.
The transaction of the first batch with which the new generation has seen all that the earlier one
has seen lists the new views in place of the old ones. An earlier generation is refused from then
on (`Superseded`), and its tables are dropped when the pipeline is started the next time.

All of it is in the listing:

    query             the entries are
    shop              what readers read, whichever generation writes it
    shop+2            of a generation that is being built
    shop+2 retired    of one whose tables are to be dropped
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from millstream.connect.tables.spec import PROGRESS_TABLE, STAMPS_TABLE, VIEWS_TABLE
from millstream.errors import ViewError
from millstream.views.history import trigger_function
from millstream.views.spec import Stamp, ViewEntry

FIRST = 1
RETIRED = " retired"  # names of queries have no spaces
_NAME = re.compile(r"(?P<query>.+)\+(?P<number>[1-9][0-9]*)")


def generation_name(query: str, number: int) -> str:
    """The name under which a generation runs, and has its checkpoint and progress."""
    return query if number == FIRST else f"{query}+{number}"


def generation_table(table: str, number: int) -> str:
    return table if number == FIRST else f"{table}__{number}"


def number_of(writer: str, query: str) -> int | None:
    """The generation of a query that this name stands for; None if it is another query's."""
    if writer == query:
        return FIRST
    found = _NAME.fullmatch(writer)
    return int(found["number"]) if found is not None and found["query"] == query else None


def is_listed_for_readers(name: str) -> bool:
    """Whether a name in the listing is that of a query, and not of a hidden generation."""
    return not name.endswith(RETIRED) and _NAME.fullmatch(name) is None


@dataclass(frozen=True)
class Generations:
    """The generations of a query in a store, by number, with the names of their views."""

    serving: int | None  # which one readers read; None if they read none yet
    views: Mapping[int, frozenset[str]]  # of that one, and of those that are being built
    last: int  # the greatest number that was ever given

    def served(self) -> frozenset[str]:
        """The views that readers read."""
        return frozenset() if self.serving is None else self.views[self.serving]

    def others(self, number: int) -> list[int]:
        """Those that are being built and have other views than this one."""
        return [it for it in self.views if it not in (number, self.serving)]

    def choose(self, names: Collection[str]) -> int:
        """The generation that has these views: one that is there, or a new one."""
        if self.serving is None:
            return max(self.last, FIRST)
        wanted = frozenset(names)
        if self.views[self.serving] == wanted:
            return self.serving
        built = [it for it, views in self.views.items() if views == wanted]
        return max(built, default=self.last + 1)


def find_generations(connection: Any, mark: str, query: str) -> Generations:
    """Within a transaction; the tables exist."""
    listed = connection.execute(f"SELECT query, view, document FROM {VIEWS_TABLE}").fetchall()
    known = connection.execute(
        f"SELECT query FROM {PROGRESS_TABLE} WHERE query LIKE {mark}", (f"{query}%",)
    ).fetchall()
    numbers = {number for (it,) in known if (number := number_of(it, query)) is not None}
    serving: int | None = None
    views: dict[int, set[str]] = {}
    for name, view, document in listed:
        number = number_of(name.removesuffix(RETIRED), query)
        if number is None:
            continue
        numbers.add(number)
        if name == query:
            number = serving = number_of(writer_in(document, query), query) or FIRST
            numbers.add(number)
        if not name.endswith(RETIRED):
            views.setdefault(number, set()).add(view)
    return Generations(
        serving, {it: frozenset(found) for it, found in views.items()}, max(numbers, default=0)
    )


def writer_in(document: str, query: str) -> str:
    """The query that writes a listed view; the first generation, if another version of Millstream
    has listed it."""
    try:
        return ViewEntry.decode(document).writer
    except ViewError:
        return query


def serving_writer(connection: Any, mark: str, query: str) -> str | None:
    """The generation that readers read; None if there is none."""
    found = connection.execute(
        f"SELECT document FROM {VIEWS_TABLE} WHERE query = {mark} LIMIT 1", (query,)
    ).fetchone()
    return None if found is None else writer_in(found[0], query)


def has_reached(mine: Stamp, theirs: Stamp) -> bool:
    """Whether a stamp has seen everything that another one has seen. Offsets of a topic that was
    deleted and created again say nothing about the new one."""
    for (topic, partition), end in theirs.offsets.items():
        ids = mine.topic_ids.get(topic), theirs.topic_ids.get(topic)
        if None not in ids and ids[0] != ids[1]:
            continue
        if mine.offsets.get((topic, partition), 0) < end:
            return False
    return True


def retire(connection: Any, mark: str, names: Sequence[str]) -> None:
    """Mark generations that are being built, so that they are not gone on with."""
    for name in names:
        connection.execute(
            f"UPDATE {VIEWS_TABLE} SET query = {mark} WHERE query = {mark}", (name + RETIRED, name)
        )


def retired(connection: Any, query: str) -> dict[str, list[ViewEntry]]:
    """The entries of retired generations, by the names of these. What another version of Millstream
    has listed is left to it."""
    found: dict[str, list[ViewEntry]] = {}
    for name, document in connection.execute(
        f"SELECT query, document FROM {VIEWS_TABLE} ORDER BY query, view"
    ).fetchall():
        writer = name.removesuffix(RETIRED)
        if writer != name and number_of(writer, query) is not None:
            with suppress(ViewError):
                found.setdefault(writer, []).append(ViewEntry.decode(document))
    return found


def drop_retired(
    connection: Any, mark: str, writer: str, entries: Sequence[ViewEntry], *, has_functions: bool
) -> None:
    """Drop the tables of a retired generation, and forget its entries and stamps. Its progress is
    kept, so that its number is not given again: its checkpoint may be there still."""
    for it in entries:
        connection.execute(f"DROP TABLE IF EXISTS {it.table}")
        connection.execute(f"DROP TABLE IF EXISTS {it.history}")
        for event in ("insert", "update", "delete") if has_functions else ():
            connection.execute(f"DROP FUNCTION IF EXISTS {trigger_function(it.history, event)}()")
    connection.execute(f"DELETE FROM {VIEWS_TABLE} WHERE query = {mark}", (writer + RETIRED,))
    connection.execute(f"DELETE FROM {STAMPS_TABLE} WHERE query = {mark}", (writer,))
