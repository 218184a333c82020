"""Readers of views: all views at one stamp, not before a position that the reader names.

    shop = open_views("sqlite:///shop.db", "shop")
    with shop.read(at_least=message) as v:
        v.stamp, v["by_user"].get("ada"), v["by_user"].range("a", "b"), v.sql("SELECT ...")

A read is one snapshot of the database. Views of one query change in one transaction, so a snapshot
has them all at one stamp. Views of several queries are at different stamps in a snapshot. They are
read at the newest stamps that name the same offsets in all topics that the queries share, and
until such stamps are there, the reader waits.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from millstream.connect.tables.schema import quote
from millstream.connect.tables.spec import STAMPS_TABLE, VIEWS_TABLE
from millstream.errors import ConfigError, NotReached, StoreError, TooMuch, ViewError
from millstream.partitions import TopicPartition
from millstream.views.cuts import common_cut
from millstream.views.databases import Database, Session, TableGone, Watch, open_database
from millstream.views.generations import is_listed_for_readers
from millstream.views.positions import Position, ends_of
from millstream.views.relations import changes, relation, with_views
from millstream.views.spec import Stamp, ViewEntry
from millstream.views.values import key_values

TIMEOUT_SECONDS = 10.0
ROWS_MAX = 10_000
SECONDS_MAX = 10.0
_SNAPSHOTS_MAX = 3


@dataclass(frozen=True)
class Listed:
    """The views of one query in a snapshot, and its stamps, the oldest first."""

    query: str
    entries: Mapping[str, ViewEntry]
    stamps: Sequence[Stamp]
    writer: str  # the generation of the query that writes them

    @property
    def newest(self) -> int:
        return self.stamps[-1].numbers[self.query]


class Views:
    """The views of one pipeline, or of several, in a store. Safe in any thread."""

    def __init__(self, database: Database, queries: Sequence[str]) -> None:
        self._database = database
        self._queries = tuple(queries)

    @contextmanager
    def read(
        self,
        at_least: Position = None,
        *,
        timeout: float = TIMEOUT_SECONDS,
        topic_ids: Mapping[str, object] | None = None,
    ) -> Iterator[Snapshot]:
        """All views at one stamp, which is at or behind `at_least`: see `positions.py`.

        Waits for at most `timeout` seconds and then raises `NotReached`. With `topic_ids`, the
        stamp must be one of these topics, and not of earlier ones of the same names.
        """
        ends = ends_of(at_least)
        ids = {name: str(it) for name, it in (topic_ids or {}).items()}
        deadline = time.monotonic() + timeout
        with ExitStack() as stack:
            watch: Watch | None = None
            while True:
                with self._listed() as (session, listed):
                    stamps, missing = _choose(listed, ends, ids)
                    if stamps is not None:
                        yield Snapshot(session, self._database, listed, stamps)
                        return
                left = deadline - time.monotonic()
                if left <= 0:
                    raise NotReached(f"{missing}; waited {timeout:g} seconds")
                watch = watch or stack.enter_context(self._database.watch())
                watch.wait(left)

    @contextmanager
    def _listed(self) -> Iterator[tuple[Session, list[Listed]]]:
        """A snapshot, with what is listed in it. Tables may be dropped between a snapshot of
        PostgreSQL and the moment at which they are locked: then another one is taken."""
        newest_only = len(self._queries) == 1
        for attempt in range(_SNAPSHOTS_MAX):
            with ExitStack() as stack:
                session = stack.enter_context(self._database.session())
                try:
                    listed = [_list(session, it, newest_only) for it in self._queries]
                except TableGone:
                    if attempt + 1 == _SNAPSHOTS_MAX:
                        raise
                    continue
                yield session, listed
                return

    def watch(self) -> Watch:
        """Waits for batches; for one thread."""
        return self._database.watch()

    def close(self) -> None:
        """Close the connections to the store."""
        self._database.close()

    def __enter__(self) -> Views:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_views(store: str, *pipelines: str) -> Views:
    """The views of these pipelines, by their names (`shop`, or `shop@2` for another version)."""
    if not pipelines:
        raise ConfigError('name a pipeline: open_views("sqlite:///shop.db", "shop")')
    return Views(open_database(store), pipelines)


@contextmanager
def read_once(
    store: str,
    pipelines: Sequence[str],
    at_least: Position = None,
    *,
    timeout: float = TIMEOUT_SECONDS,
    topic_ids: Mapping[str, object] | None = None,
) -> Iterator[Snapshot]:
    """As `Views.read`, on connections of its own, which are closed behind it."""
    with (
        open_views(store, *pipelines) as views,
        views.read(at_least, timeout=timeout, topic_ids=topic_ids) as snapshot,
    ):
        yield snapshot


class Snapshot:
    """All views at one stamp, until the `with` block ends."""

    def __init__(
        self,
        session: Session,
        database: Database,
        listed: Sequence[Listed],
        stamps: Sequence[Stamp],
    ) -> None:
        self._session = session
        self._views: dict[str, View] = {}
        self.stamp = _joined(stamps)
        for query, stamp in zip(listed, stamps, strict=True):
            number = stamp.numbers[query.query]
            for name, entry in query.entries.items():
                if name in self._views:
                    raise ViewError(f"two of these pipelines have a view {name}: read one of them")
                self._views[name] = View(self, session, database, entry, query, number)

    def __getitem__(self, name: str) -> View:
        try:
            return self._views[name]
        except KeyError:
            known = ", ".join(sorted(self._views))
            raise ViewError(f"there is no view {name}; there are {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._views)

    def sql(
        self,
        text: str,
        values: Sequence[Any] = (),
        *,
        rows_max: int = ROWS_MAX,
        seconds_max: float = SECONDS_MAX,
    ) -> list[dict[str, Any]]:
        """The rows of a SELECT, in the SQL of the database, over views by their names. Parameters
        are `?` in SQLite and `%s` in PostgreSQL. Raises `TooMuch` beyond the limits."""
        statement = with_views(text, {name: it.relation() for name, it in self._views.items()})
        names, rows = self._session.query(
            statement, values, rows_max=rows_max, seconds_max=seconds_max
        )
        return [dict(zip(names, row, strict=True)) for row in rows]


class View:
    """One view in a snapshot: its rows by key, by a condition, and their changes."""

    def __init__(
        self,
        snapshot: Snapshot,
        session: Session,
        database: Database,
        entry: ViewEntry,
        listed: Listed,
        number: int,
    ) -> None:
        self.entry = entry
        self.number = number  # of the stamp that it is read at, among those of its query
        self._snapshot = snapshot
        self._session = session
        self._database = database
        self._query = listed.query
        self._writer = listed.writer
        self._newest = listed.newest

    def relation(self) -> str:
        """The SELECT of its rows."""
        return relation(self.entry, self.number, self._newest)

    def get(self, *key: Any) -> dict[str, Any] | None:
        """The row with this key, if there is one."""
        values = key_values(self.entry.key_columns, key, whole=True)
        mark = self._session.mark
        condition = " AND ".join(f"{quote(it)} = {mark}" for it in self.entry.key)
        found = self._rows(f"WHERE {condition}", self._bound(values))
        return found[0] if found else None

    def range(
        self,
        low: Any = None,
        high: Any = None,
        *,
        limit: int = ROWS_MAX,
        descending: bool = False,
    ) -> list[dict[str, Any]]:
        """Rows in the order of the key, from `low` up to, not with, `high`. Either is a value of
        the first key column, or a tuple of the first columns' values."""
        if any(it.kind == "decimal" for it in self.entry.key_columns) and (
            not self._database.orders_decimals
        ):
            raise ViewError(
                "SQLite keeps decimals as text, which has another order: use sql() with CAST"
            )
        conditions, bound = [], []
        for given, sign in ((low, ">="), (high, "<")):
            if given is not None:
                values = given if isinstance(given, tuple) else (given,)
                checked = key_values(self.entry.key_columns, values, whole=False)
                columns = ", ".join(quote(it) for it in self.entry.key[: len(checked)])
                marks = ", ".join([self._session.mark] * len(checked))
                conditions.append(f"({columns}) {sign} ({marks})")
                bound += self._bound(checked)
        where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
        way = " DESC" if descending else ""
        order = ", ".join(quote(it) + way for it in self.entry.key)
        return self._rows(f"{where} ORDER BY {order} LIMIT {int(limit)}", bound)

    def sql(self, text: str, values: Sequence[Any] = (), **limits: Any) -> list[dict[str, Any]]:
        """As `Snapshot.sql`."""
        return self._snapshot.sql(text, values, **limits)

    def count(self) -> int:
        """The number of rows."""
        ((found,),) = self._session.rows(f"SELECT count(*) FROM ({self.relation()}) AS v")
        return int(found)

    def changes(
        self, number: int, *, rows_max: int = ROWS_MAX
    ) -> list[tuple[dict[str, Any] | None, dict[str, Any] | None]]:
        """What a batch changed: the row before and the row after it, either of which may be None.
        Raises `ViewError` if its stamp is no longer kept, `TooMuch` beyond `rows_max`."""
        width = len(self.entry.columns)
        found = []
        relation(self.entry, number - 1, self._newest)  # raises unless it is kept
        statement = f"{changes(self.entry, number, self._newest)} LIMIT {rows_max + 1}"
        rows = self._session.rows(statement)
        if len(rows) > rows_max:
            raise TooMuch(f"batch {number} changed more than {rows_max} rows")
        for was, now, *cells in rows:
            before = self._as_dict(cells[:width]) if was else None
            after = self._as_dict(cells[width:]) if now else None
            if before != after:
                found.append((before, after))
        return found

    def stamp_at(self, number: int) -> Stamp | None:
        """The stamp of a batch of the view's query, if it is still kept."""
        mark = self._session.mark
        found = self._session.rows(
            f"SELECT number, offsets, ids FROM {STAMPS_TABLE} WHERE query = {mark} "
            f"AND number = {mark}",
            (self._writer, number),
        )
        return Stamp.parse(self._query, *found[0]) if found else None

    def _bound(self, values: Sequence[Any]) -> list[Any]:
        columns = self.entry.key_columns
        return [self._session.value(it, value) for it, value in zip(columns, values, strict=False)]

    def _rows(self, rest: str, values: Sequence[Any]) -> list[dict[str, Any]]:
        statement = f"SELECT {self.entry.listed()} FROM ({self.relation()}) AS v {rest}"
        return [self._as_dict(row) for row in self._session.rows(statement, values)]

    def _as_dict(self, row: Sequence[Any]) -> dict[str, Any]:
        columns = self.entry.columns
        return {
            it.name: self._session.read(it, cell) for it, cell in zip(columns, row, strict=True)
        }


def _list(session: Session, query: str, newest_only: bool) -> Listed:
    """The views of a query in this snapshot, with all of its stamps or the newest. Raises
    `ConfigError` if it has no views."""
    mark = session.mark
    try:
        documents = session.rows(
            f"SELECT document FROM {VIEWS_TABLE} WHERE query = {mark} ORDER BY view", (query,)
        )
    except StoreError as error:
        if VIEWS_TABLE in str(error):
            raise ConfigError(f"this store has no views: no pipeline wrote any ({error})") from None
        raise
    if not documents:
        known = [
            it
            for (it,) in session.rows(f"SELECT DISTINCT query FROM {VIEWS_TABLE}")
            if is_listed_for_readers(it)
        ]
        raise ConfigError(
            f"there are no views of {query} in this store; there are views of "
            f"{', '.join(sorted(known)) or 'no pipeline'}"
        )
    entries = [ViewEntry.decode(text) for (text,) in documents]
    writer = entries[0].writer  # of all: they were listed in one transaction
    session.hold([it.table for it in entries])
    stamps = _stamps(session, query, writer, newest_only)
    return Listed(query, {it.view: it for it in entries}, stamps, writer)


def _stamps(session: Session, query: str, writer: str, newest_only: bool) -> list[Stamp]:
    found = session.rows(
        f"SELECT number, offsets, ids FROM {STAMPS_TABLE} WHERE query = {session.mark} "
        f"ORDER BY number DESC{' LIMIT 1' if newest_only else ''}",
        (writer,),
    )
    return [Stamp.parse(query, *it) for it in reversed(found)]


def leading_stamps(session: Session, query: str) -> list[Stamp]:
    """The stamps of the generation of a query that readers read, the oldest first. None if it has
    no views yet."""
    documents = session.rows(
        f"SELECT document FROM {VIEWS_TABLE} WHERE query = {session.mark} LIMIT 1", (query,)
    )
    if not documents:
        return []
    return _stamps(session, query, ViewEntry.decode(documents[0][0]).writer, newest_only=False)


def newest_stamp(session: Session, writer: str) -> Stamp:
    """Of a generation of a query; one without offsets if it has written nothing."""
    found = _stamps(session, writer, writer, newest_only=True)
    return found[0] if found else Stamp({})


def _choose(
    listed: Sequence[Listed], ends: Mapping[TopicPartition, int], ids: Mapping[str, str]
) -> tuple[list[Stamp] | None, str]:
    """The stamps to read at, one for each query; or None and what is missing."""
    empty = [it.query for it in listed if not it.stamps]
    if empty:
        return None, f"{', '.join(empty)} has written no batch yet"
    newest = [it.stamps[-1] for it in listed]
    for stamp in newest:
        for topic, wanted in ids.items():
            if topic in stamp.topic_ids and stamp.topic_ids[topic] != wanted:
                return None, (
                    f"{', '.join(stamp.numbers)} has read an earlier topic {topic}, which was "
                    f"deleted (id {stamp.topic_ids[topic]}, now {wanted})"
                )
    known = {topic for stamp in newest for topic, _ in stamp.offsets}
    for topic, partition in ends:
        if topic not in known and all(it.offsets for it in newest):
            raise ViewError(
                f"position {topic}-{partition}: these views are not of topic {topic}, but of "
                f"{', '.join(sorted(known))}"
            )
    chosen = common_cut([_usable(it) for it in listed])
    if chosen is None:
        return None, (
            f"{' and '.join(it.query for it in listed)} have no common stamp among those that are "
            "kept"
        )
    for stamp in chosen:
        for place, end in ends.items():
            if place[0] in {topic for topic, _ in stamp.offsets} and _read(stamp, place) < end:
                return None, (
                    f"{', '.join(stamp.numbers)} has read {place[0]}-{place[1]} up to offset "
                    f"{_read(stamp, place)}, and offset {end - 1} is asked for"
                )
    return chosen, ""


def _usable(listed: Listed) -> list[Stamp]:
    """The stamps at which all views of a query can be read."""
    oldest = max(max(it.since, listed.newest - it.keeps) for it in listed.entries.values())
    return [it for it in listed.stamps if it.numbers[listed.query] >= oldest] or [listed.stamps[-1]]


def _read(stamp: Stamp, place: TopicPartition) -> int:
    return stamp.offsets.get(place, 0)


def _joined(stamps: Sequence[Stamp]) -> Stamp:
    offsets: dict[TopicPartition, int] = {}
    ids: dict[str, str] = {}
    numbers: dict[str, int] = {}
    for it in stamps:
        offsets |= it.offsets
        ids |= it.topic_ids
        numbers |= it.numbers
    return Stamp(offsets, ids, numbers)
