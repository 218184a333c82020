"""SQL of a view as it is, and as it was at an earlier stamp. Pure text, for SQLite and PostgreSQL.

A reader's own SQL gets the views as common table expressions, by their names:

    WITH "by_user" AS NOT MATERIALIZED (SELECT ... FROM main."by_user"), ... SELECT ...
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from millstream.connect.tables.schema import quote
from millstream.errors import ViewError
from millstream.views.spec import EXISTED, NUMBER, ViewEntry

_COMMENT = re.compile(r"\s+|--[^\n]*(\n|\Z)|/\*.*?\*/", re.DOTALL)
_WITH = re.compile(r"with\s+(recursive\s+)?", re.IGNORECASE)
_SELECT = re.compile(r"(select|values)\b", re.IGNORECASE)


def relation(entry: ViewEntry, number: int, newest: int) -> str:
    """A SELECT of the view's rows at a stamp. Raises `ViewError` if they are no longer kept."""
    if number == newest:
        return f"SELECT {entry.listed()} FROM {entry.table}"
    if number < max(entry.since, newest - entry.keeps):
        raise ViewError(
            f"view {entry.view} is kept for {entry.keeps} stamps, and stamp {number} is "
            f"{newest - number} behind: view(..., keeps=...) sets how many are kept"
        )
    changed = _same_key(entry, "h", "t")
    earlier = _same_key(entry, "e", "h")
    return (
        f"SELECT {entry.listed('t.')} FROM {entry.table} AS t WHERE NOT EXISTS (SELECT 1 FROM "
        f"{entry.history} AS h WHERE h.{NUMBER} > {number} AND {changed}) "
        f"UNION ALL SELECT {entry.listed('h.')} FROM {entry.history} AS h "
        f"WHERE h.{NUMBER} > {number} AND h.{EXISTED} AND NOT EXISTS (SELECT 1 FROM "
        f"{entry.history} AS e WHERE e.{NUMBER} > {number} AND e.{NUMBER} < h.{NUMBER} "
        f"AND {earlier})"
    )


def changes(entry: ViewEntry, number: int, newest: int) -> str:
    """A SELECT of the rows that a batch changed: whether the row was there before and is there now,
    then the row before and the row now. Rows that are the same again are among them."""
    now = relation(entry, number, newest)
    first, *_ = entry.key
    before = ", ".join(f"h.{quote(it)}" for it in entry.names)
    after = ", ".join(f"n.{quote(it)}" for it in entry.names)
    order = ", ".join(f"h.{quote(it)}" for it in entry.key)
    return (
        f"SELECT h.{EXISTED}, n.{quote(first)} IS NOT NULL, {before}, {after} "
        f"FROM {entry.history} AS h LEFT JOIN ({now}) AS n ON {_same_key(entry, 'h', 'n')} "
        f"WHERE h.{NUMBER} = {number} ORDER BY {order}"
    )


def _same_key(entry: ViewEntry, one: str, other: str) -> str:
    return " AND ".join(f"{one}.{quote(it)} = {other}.{quote(it)}" for it in entry.key)


def with_views(text: str, relations: Mapping[str, str]) -> str:
    """A reader's query, with the views that it may name. Raises `ViewError` unless it is one."""
    begin = 0
    while found := _COMMENT.match(text, begin):
        begin = found.end()
    text = text[begin:].rstrip().removesuffix(";")
    listed = ", ".join(
        f"{quote(name)} AS NOT MATERIALIZED ({it})" for name, it in relations.items()
    )
    if opening := _WITH.match(text):
        recursive = "RECURSIVE " if opening[1] else ""
        return f"WITH {recursive}{listed}, {text[opening.end() :]}"
    if _SELECT.match(text):
        return f"WITH {listed} {text}"
    raise ViewError("a query of views begins with SELECT, VALUES or WITH")
