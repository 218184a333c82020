"""Whether the tables of a capture are in the stream without a gap.

PostgreSQL does not say that changes of a table are missing from the stream: that the table was out
of the publication, or had another name, for a while. So the state of a table has what identifies
its time in the publication. It is compared with the catalogue when a capture continues, and with
each heartbeat; names in the stream are compared by `ChunkTasks.relation`. A table that was away is
copied again, after a truncate, like one that was recreated.

Rows that partitions bring or take with them are not in the stream either. They may be any number,
and their removal may not be meant for the topics: a warning names the partitions and the command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from millstream.connect.capture.position import CaptureState, TableState
from millstream.connect.capture.selection import SourceTable
from millstream.connect.capture.source import Source

SCHEMAS_VERSION = 150_000  # publications of schemas

# The entry of a table in a publication has another oid when it is added again.
_BY_TABLE = """
SELECT r.prrelid::int8, 'table ' || r.oid
  FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
 WHERE p.pubname = %s
"""
_BY_ALL = """
SELECT c.oid::int8, 'all of ' || p.oid
  FROM pg_class c JOIN pg_publication p ON p.puballtables
 WHERE p.pubname = %s AND c.relkind IN ('r', 'p')
"""
# The entry of its dependency on the schema has another xmin when it was moved there again.
_BY_SCHEMA = """
SELECT c.oid::int8, 'schema ' || s.oid || ' since ' || d.xmin
  FROM pg_publication_namespace s JOIN pg_publication p ON p.oid = s.pnpubid
  JOIN pg_class c ON c.relnamespace = s.pnnspid AND c.relkind IN ('r', 'p')
  JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
   AND d.refclassid = 'pg_namespace'::regclass AND d.refobjid = s.pnnspid
 WHERE p.pubname = %s
"""
# A partition that was created as such is entered in both catalogues by one transaction.
_PARTITIONS = """
SELECT root.oid::int8, c.oid::int8, format('%%s.%%s', n.nspname, c.relname),
       i.xmin IS DISTINCT FROM d.xmin
  FROM unnest(%s::oid[]) root(oid)
 CROSS JOIN pg_partition_tree(root.oid) tree
  JOIN pg_class c ON c.oid = tree.relid
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_inherits i ON i.inhrelid = tree.relid
  LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
   AND d.refclassid = 'pg_namespace'::regclass
 WHERE tree.level > 0
 ORDER BY 3
"""


class Partition(NamedTuple):
    name: str
    was_attached: bool  # after it was created: it may have brought rows


class Member(NamedTuple):
    """A captured table of the catalogue."""

    table: SourceTable
    published: str  # by what, and since when; "" if it is not published
    partitions: Mapping[int, Partition]  # by oid, at all levels


def read_members(
    source: Source, publication: str, tables: Mapping[str, SourceTable]
) -> dict[str, Member]:
    queries = [_BY_ALL, _BY_TABLE]
    if source.version >= SCHEMAS_VERSION:
        queries.append(_BY_SCHEMA)
    published: dict[int, list[str]] = {it.oid: [] for it in tables.values()}
    for query in queries:
        for oid, way in source.connection.execute(query, (publication,)).fetchall():
            if oid in published:
                published[oid].append(way)
    partitions: dict[int, dict[int, Partition]] = {oid: {} for oid in published}
    roots = [it.oid for it in tables.values() if it.kind == "p"]
    for root, oid, *partition in source.connection.execute(_PARTITIONS, (roots,)).fetchall():
        partitions[root][oid] = Partition(*partition)
    return {
        name: Member(table, ", ".join(published[table.oid]), partitions[table.oid])
        for name, table in tables.items()
    }


def first_tables(
    known: Mapping[str, TableState], members: Mapping[str, Member]
) -> dict[str, TableState]:
    """The tables of a new slot: all are copied, if any is."""
    gone = {name: table.left() for name, table in known.items() if name not in members}
    return gone | {
        name: _updated(known.get(name, TableState(0)).restarted(), it, is_new=True)
        for name, it in members.items()
    }


def without_absent(state: CaptureState, members: Mapping[str, Member]) -> CaptureState:
    """The state without tables that are not captured, or not published."""
    for name, table in state.tables.items():
        is_there = name in members and members[name].published
        if not is_there and not table.is_left:
            state = state.with_table(name, table.left())
    return state


def joining(state: CaptureState, members: Mapping[str, Member]) -> dict[str, Member]:
    """Tables that are new, or were away."""
    return {
        name: member
        for name, member in members.items()
        if name not in state.tables or _was_away(state.tables[name], member)
    }


def _was_away(before: TableState, member: Member) -> bool:
    is_same = before.oid == member.table.oid and before.published in ("", member.published)
    return before.is_left or not is_same


def with_members(
    state: CaptureState, members: Mapping[str, Member], *, is_added_copied: bool
) -> CaptureState:
    """The state with all members. Without `is_added_copied`, new ones begin with their changes."""
    added = TableState(0, "waiting" if is_added_copied else "done")
    new = joining(state, members)
    for name, member in members.items():
        table = state.tables.get(name, added)
        if name in state.tables and name in new:
            table = replace(table.restarted(), replaces=True)
        state = state.with_table(name, _updated(table, member, is_new=name in new))
    return state


def _updated(table: TableState, member: Member, *, is_new: bool = False) -> TableState:
    return replace(
        table,
        oid=member.table.oid,
        rows_expected=member.table.rows_expected if is_new else table.rows_expected,
        published=member.published,
        partitions={oid: it.name for oid, it in member.partitions.items()},
    )


def changes(before: CaptureState, after: CaptureState) -> Iterator[str]:
    """What has happened to tables between two states, for the log."""
    for name, table in after.tables.items():
        known = before.tables.get(name)
        if known is None:
            yield f"table {name} was added"
        elif table.is_left != known.is_left:
            yield f"table {name} has {'left' if table.is_left else 'returned'}"
        elif table.oid != known.oid:
            yield f"table {name} was recreated"
        elif known.published not in ("", table.published):
            yield f"table {name} was published again"


def partition_changes(state: CaptureState, members: Mapping[str, Member]) -> Iterator[str]:
    """Partitions whose rows came or went without being streamed."""
    for name, member in members.items():
        table = state.tables.get(name)
        if table is None or table.partitions is None or table.owes_truncate:
            continue
        attached = [
            it.name
            for oid, it in member.partitions.items()
            if it.was_attached and oid not in table.partitions
        ]
        removed = [it for oid, it in table.partitions.items() if oid not in member.partitions]
        parts = [("attached", attached), ("detached or dropped", removed)]
        found = "; ".join(f"{', '.join(names)} ({what})" for what, names in parts if names)
        if found:
            yield (
                f"partitions of {name} have changed: {found}. PostgreSQL does not send their rows; "
                f"`millstream capture resnapshot CAPTURE.TOML {name} --replace` copies {name} again"
            )
