"""The source database: its catalogue, the publication and the slot, with the checks at each start.

What goes wrong later without an error in PostgreSQL is refused here, with the reason and the cure:
a publication that was recreated or lacks operations, a slot that was moved, recreated or
invalidated. Single tables are left out instead (`selection.py`). See docs/guides/capture.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from millstream.connect.capture.pgoutput import Relation, format_lsn, parse_lsn
from millstream.connect.capture.position import CaptureState, Position, TableState
from millstream.connect.capture.replication import (
    ReplicationConnection,
    System,
    TimelineEnd,
    connection_string,
)
from millstream.connect.capture.selection import (
    OPERATIONS,
    Publication,
    Selection,
    SourceTable,
    listed,
    select,
    unmatched_patterns,
)
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.tables import CaptureError, Column, Table

SERVER_VERSION_MIN = 140_000
COLUMN_LISTS_VERSION = 150_000  # and row filters, in pg_publication_tables
FAILOVER_VERSION = 170_000
START_OVER = "`millstream capture resnapshot --new-slot` starts over with a new snapshot"

_TABLES = """
SELECT c.oid::int8, n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text,
       greatest(c.reltuples, 0)::int8,
       CASE c.relreplident WHEN 'f' THEN true WHEN 'n' THEN false ELSE EXISTS (
           SELECT FROM pg_index i
            WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate  -- not DEFERRABLE
              AND CASE c.relreplident WHEN 'd' THEN i.indisprimary ELSE i.indisreplident END
       ) END,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'),
       row_security_active(c.oid),
       pg_has_role(c.relowner, 'USAGE'), current_user::text
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
   AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
 ORDER BY 2, 3
"""
_ROOTS = """
SELECT n.nspname || '.' || c.relname, rn.nspname || '.' || r.relname
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_class r ON r.oid = pg_partition_root(c.oid)
  JOIN pg_namespace rn ON rn.oid = r.relnamespace
 WHERE c.relispartition AND n.nspname || '.' || c.relname = ANY(%s)
"""
_COLUMNS = """
SELECT a.attname::text, a.atttypid::int8, a.atttypmod, a.attcollation::int8
  FROM pg_attribute a
 WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
 ORDER BY a.attnum
"""
_INDEX_COLUMNS = """
SELECT i.indisprimary, array_agg(a.attname::text ORDER BY k.ordinality)
  FROM pg_index i
 CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, ordinality)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
 WHERE i.indrelid = %s AND (i.indisprimary OR i.indisreplident)
   AND k.ordinality <= i.indnkeyatts
 GROUP BY i.indexrelid, i.indisprimary
"""
_SLOT = """
SELECT plugin::text, database::text, active_pid, coalesce(wal_status, ''),
       restart_lsn::text, confirmed_flush_lsn::text,
       pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::int8,
       pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8, safe_wal_size
  FROM pg_replication_slots WHERE slot_name = %s
"""
_OPEN_TRANSACTIONS = """
SELECT pid, coalesce(usename, '')::text, coalesce(application_name, ''), coalesce(state, ''),
       extract(epoch FROM now() - xact_start)::int8, backend_xid::text::int8
  FROM pg_stat_activity
 WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
 UNION ALL
SELECT 0, owner::text, 'prepared transaction ' || gid, 'prepared',
       extract(epoch FROM now() - prepared)::int8, transaction::text::int8
  FROM pg_prepared_xacts
 ORDER BY 5 DESC
"""
_WRITERS = """
SELECT DISTINCT virtualtransaction FROM pg_locks
 WHERE locktype = 'relation' AND relation = ANY(%s)
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
                'AccessExclusiveLock')
   AND pid IS DISTINCT FROM pg_backend_pid()
"""


class NotPrimary(OSError):
    """The server is a standby: it may be promoted soon."""


class Slot(NamedTuple):
    plugin: str
    database: str
    active_pid: int | None
    wal_status: str  # reserved, extended, unreserved, lost
    restart_lsn: str | None
    confirmed_lsn: str | None
    lag_bytes: int | None  # not confirmed yet
    retained_bytes: int | None  # kept on disk for the slot
    safe_bytes: int | None  # until it is invalidated; None: never

    def keeps_more_than(self, limit_bytes: int) -> bool:
        return (self.retained_bytes or 0) > limit_bytes


class CopyPlan(NamedTuple):
    """How a table is copied: the layout, and the published rows."""

    table: Table
    kind: str
    row_filter: str | None
    key_order: tuple[str, ...] = ()  # what the order of the key depends on, for each of its columns


class Source:
    """A connection for the catalogue. Raises `psycopg.OperationalError` when it is lost."""

    def __init__(self, settings: CaptureSettings) -> None:
        self._settings = settings
        self.connection = connect(settings.database)
        self.database = self.connection.info.dbname
        self.version = self.connection.info.server_version

    def close(self) -> None:
        self.connection.close()

    def check_server(self) -> None:
        if self.version < SERVER_VERSION_MIN:
            raise CaptureError(
                f"the server is PostgreSQL {self.version // 10_000}; capture needs 14 or newer"
            )
        if self._settings.failover and self.version < FAILOVER_VERSION:
            raise CaptureError(
                f"failover is set, but the server is PostgreSQL {self.version // 10_000}; standbys "
                "copy slots since 17"
            )
        (is_standby,) = self._row("SELECT pg_is_in_recovery()")
        if is_standby:
            raise NotPrimary(
                f"{self.connection.info.host}:{self.connection.info.port} is a standby; connect to "
                "the primary, or list all hosts and add target_session_attrs=read-write"
            )
        (level,) = self._row("SHOW wal_level")
        if level != "logical":
            raise CaptureError(
                f"wal_level is {level}; run `ALTER SYSTEM SET wal_level = logical` and restart "
                "PostgreSQL"
            )
        may_replicate = self._row(
            "SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user"
        )[0]
        if not may_replicate:
            (user,) = self._row("SELECT current_user")
            raise CaptureError(
                f"role {user} may not replicate; run `ALTER ROLE {user} REPLICATION`"
            )

    def _row(self, query: LiteralString, *parameters: Any) -> tuple[Any, ...]:
        found = self.connection.execute(query, parameters).fetchone()
        assert found is not None
        return found

    # Tables

    def select(self, known: Mapping[str, TableState]) -> Selection:
        """The captured tables, and what is wrong with others. `known`: those of the stored
        state; they need not be readable if they are copied."""
        rows = [SourceTable(*row) for row in self.connection.execute(_TABLES).fetchall()]
        publication = self.publication()
        rows = [it if it.may_read else self._with_column_rights(it) for it in rows]
        selection = select(self._settings, rows, publication, known)
        patterns = list(self._settings.tables)
        roots = dict(self.connection.execute(_ROOTS, (patterns,)).fetchall())
        selection.warnings.update(unmatched_patterns(self._settings, rows, roots))
        return selection

    def tables(
        self, known: Mapping[str, TableState] = MappingProxyType({})
    ) -> dict[str, SourceTable]:
        """The captured tables, by full name."""
        return self.select(known).tables

    def _with_column_rights(self, table: SourceTable) -> SourceTable:
        """The role may have SELECT on the published columns only."""
        if not self._settings.captures(table.schema, table.name):
            return table
        columns = [it.name for it in self.copy_plan(table).table.columns]
        (may_read,) = self._row(
            "SELECT has_schema_privilege(%s::text, 'USAGE')"
            " AND bool_and(has_column_privilege(%s::oid, it, 'SELECT')) FROM unnest(%s::text[]) it",
            table.schema,
            table.oid,
            columns,
        )
        return table._replace(may_read=bool(may_read))

    def describe(self, relation: Relation) -> Table:
        """A table as a Relation message has it, with the key from the catalogue."""
        key = self._key(relation.oid, relation.replica_identity)
        # The catalogue may be newer than the message.
        if relation.replica_identity in ("d", "i"):
            if set(key) != set(relation.identity):
                key = relation.identity
        elif not set(key) <= {column.name for column in relation.columns}:
            key = ()
        return Table(
            relation.oid,
            relation.schema,
            relation.name,
            relation.columns,
            key,
            relation.replica_identity,
            relation.identity,
        )

    def _key(self, oid: int, replica_identity: str) -> tuple[str, ...]:
        """The columns of the replica identity's index, else of the primary key."""
        found = dict(self.connection.execute(_INDEX_COLUMNS, (oid,)).fetchall())
        wanted = replica_identity != "i"  # else the index of the identity, which may be it too
        columns = found.get(wanted) or found.get(True) or ()
        return tuple(columns)

    def copy_plan(self, table: SourceTable) -> CopyPlan:
        """The layout of a table's published columns."""
        columns = self.connection.execute(_COLUMNS, (table.oid,)).fetchall()
        names, row_filter = None, None
        if self.version >= COLUMN_LISTS_VERSION:
            published = self.connection.execute(
                "SELECT attnames::text[], rowfilter FROM pg_publication_tables"
                " WHERE pubname = %s AND schemaname = %s AND tablename = %s",
                (self._settings.publication, table.schema, table.name),
            ).fetchone()
            if published is not None:
                names, row_filter = set(published[0]), published[1]
        layout = tuple(Column(*it[:3]) for it in columns if names is None or it[0] in names)
        key = self._key(table.oid, table.replica_identity)
        described = Table(
            table.oid, table.schema, table.name, layout, key, table.replica_identity, ()
        )
        orders = {name: f"{name} {type_oid} {it}" for name, type_oid, _, it in columns}
        return CopyPlan(described, table.kind, row_filter, tuple(orders[name] for name in key))

    def size_bytes(self, table: SourceTable) -> int:
        """The rows on disk, with those of partitions."""
        (size,) = self._row(
            "SELECT coalesce(sum(pg_table_size(t)), 0)::int8"
            " FROM (SELECT %s::oid UNION SELECT relid FROM pg_partition_tree(%s)) tree(t)",
            table.oid,
            table.oid,
        )
        return int(size)

    # Publication

    def publication(self) -> Publication | None:
        row = self.connection.execute(
            "SELECT oid::int8, pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,"
            " pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s",
            (self._settings.publication,),
        ).fetchone()
        if row is None:
            return None
        tables = self.connection.execute(
            "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s",
            (self._settings.publication,),
        ).fetchall()
        return Publication(
            row[0],
            frozenset(it for it, is_set in zip(OPERATIONS, row[1:5], strict=True) if is_set),
            row[5],
            row[6],
            frozenset(it for (it,) in tables),
        )

    def ensure_publication(self, tables: dict[str, SourceTable]) -> Publication:
        """The publication with at least these tables: created or extended if that is allowed."""
        known = self.publication()
        if known is not None:
            self.check_operations(known)
        missing = [it for name, it in tables.items() if known is None or name not in known.tables]
        if known is not None and not missing:
            return known
        statement = self._publication_statement(known, missing)
        if not self._settings.manage_publication:
            raise CaptureError(
                f"publication {self._settings.publication} lacks tables, and manage_publication is "
                f"off; run `{statement.as_string(self.connection)}`"
            )
        try:
            self.connection.execute(statement)
        except psycopg.errors.InsufficientPrivilege as error:
            raise CaptureError(
                f"{error.diag.message_primary}; let an owner of the tables run "
                f"`{statement.as_string(self.connection)}`"
            ) from None
        created = self.publication()
        assert created is not None
        return created

    def _publication_statement(
        self, known: Publication | None, missing: Sequence[SourceTable]
    ) -> sql.Composed:
        name = sql.Identifier(self._settings.publication)
        tables = sql.SQL(", ").join(sql.Identifier(it.schema, it.name) for it in missing)
        if known is not None:
            return sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(name, tables)
        return sql.SQL(
            "CREATE PUBLICATION {} FOR TABLE {} WITH (publish_via_partition_root = true)"
        ).format(name, tables)

    def check_operations(self, publication: Publication) -> None:
        """Changes that are not published never reach the topics."""
        unpublished = publication.unpublished_operations
        if unpublished:
            name = self._settings.publication
            raise CaptureError(
                f"publication {name} does not publish {', '.join(unpublished)}: topics would keep "
                f"old rows. Run `ALTER PUBLICATION {name} SET (publish = "
                f"'{', '.join(OPERATIONS)}')`. If the capture has run without, then `millstream "
                "capture resnapshot --replace` brings the topics up to date"
            )

    def writers(self, tables: Iterable[SourceTable]) -> set[str]:
        """Transactions that hold locks for writing on the tables or their partitions."""
        oids = [it.oid for it in tables]
        parts = self.connection.execute(
            "SELECT relid::oid::int8 FROM unnest(%s::oid[]) t, pg_partition_tree(t)", (oids,)
        ).fetchall()
        every = [*oids, *(it for (it,) in parts)]
        return {it for (it,) in self.connection.execute(_WRITERS, (every,)).fetchall()}

    # Slot

    def slot(self) -> Slot | None:
        row = self.connection.execute(_SLOT, (self._settings.slot,)).fetchone()
        return None if row is None else Slot(*row)

    def refuse_foreign_slot(
        self, slot: Slot | None, state: CaptureState | None, position: Position | None
    ) -> None:
        """Refuse to replace a slot that may be of another capture. Read the slot first: a process
        of this capture confirms only what is in the position topic."""
        if slot is None:
            return
        name, topic = self._settings.slot, self._settings.position_topic
        cure = (
            "Set another slot in the settings. If no capture uses this one, drop it with "
            f"`SELECT pg_drop_replication_slot('{name}')`"
        )
        if state is None or state.slot != name:
            raise CaptureError(
                f"slot {name} exists, but topic {topic} has no position for it: the slot is of "
                f"another capture, or the topic was deleted. {cure}"
            )
        confirmed = parse_lsn(slot.confirmed_lsn or "0/0")
        if slot.active_pid is not None and position is not None and confirmed > position.lsn:
            raise CaptureError(
                f"slot {name} is read by another capture (pid {slot.active_pid}): it is at "
                f"{slot.confirmed_lsn}, ahead of the position in topic {topic}. {cure}"
            )

    def drop_publication(self, oid: int) -> bool:
        """Drop the publication if it still has this oid and belongs to the role; returns whether it
        was dropped."""
        publication = self.publication()
        if publication is None or publication.oid != oid or not publication.is_own:
            return False
        name = sql.Identifier(self._settings.publication)
        self.connection.execute(sql.SQL("DROP PUBLICATION {}").format(name))
        return True

    def drop_slot(self) -> None:
        """Drop the slot, ending the connection that reads it."""
        slot = self.slot()
        if slot is None:
            return
        if slot.active_pid is not None:
            self.terminate(slot.active_pid)
        self.connection.execute("SELECT pg_drop_replication_slot(%s)", (self._settings.slot,))

    def terminate(self, pid: int) -> None:
        """End a connection and wait for its end; a role may end its own ones."""
        self.connection.execute("SELECT pg_terminate_backend(%s, 5000)", (pid,))

    def check_slot(self, slot: Slot | None, position: Position) -> None:
        """Refuse a slot that does not continue at the stored position."""
        name = self._settings.slot
        if slot is None:
            raise CaptureError(
                f"slot {name} is gone: changes after {format_lsn(position.lsn)} are lost. It was "
                "dropped, or a failover went to a server without it: before PostgreSQL 17, "
                f"standbys have no slots. {START_OVER}"
            )
        if slot.plugin != "pgoutput" or slot.database != self.database:
            raise CaptureError(
                f"slot {name} is of {slot.plugin} in database {slot.database}, not of this capture"
            )
        if slot.wal_status == "lost" or slot.confirmed_lsn is None:
            raise CaptureError(
                f"slot {name} is invalidated: PostgreSQL removed the log that it needs "
                f"(max_slot_wal_keep_size). {START_OVER}"
            )
        confirmed = parse_lsn(slot.confirmed_lsn)
        if confirmed > position.lsn:
            raise CaptureError(
                f"slot {name} is at {slot.confirmed_lsn}, ahead of the stored position "
                f"{format_lsn(position.lsn)}: it was recreated or advanced, and the changes in "
                f"between are lost. {START_OVER}"
            )

    def check_continued(
        self,
        replication: ReplicationConnection,
        slot: Slot | None,
        state: CaptureState,
        position: Position,
    ) -> System:
        """Refuse whatever does not continue the stored position."""
        system = replication.identify()
        is_same = system.timeline == state.timeline
        history = [] if is_same else replication.timeline_history(system.timeline)
        publication = self.publication()
        self.check_identity(state, position, system, history, publication)
        assert publication is not None
        self.check_operations(publication)
        self.check_slot(slot, position)
        return system

    def check_identity(
        self,
        state: CaptureState,
        position: Position,
        system: System,
        history: Sequence[TimelineEnd],
        publication: Publication | None,
    ) -> None:
        """Refuse another database, one that has lost transactions, and a publication that was
        dropped or recreated."""
        if (state.system_id, state.database) != (system.id, system.database):
            raise CaptureError(
                f"the stored position is of database {state.database} of cluster "
                f"{state.system_id}, but this is {system.database} of {system.id}. Restored from a "
                f"dump, or another server? {START_OVER}"
            )
        if system.timeline != state.timeline:
            _check_timeline(state, position, system, history)
        if system.lsn < position.lsn:
            raise CaptureError(
                f"the database is at {format_lsn(system.lsn)} (timeline {system.timeline}), behind "
                f"the stored position {format_lsn(position.lsn)} (timeline {state.timeline}): a "
                "failover or an older backup has lost transactions that are in the topics. "
                f"{START_OVER}"
            )
        if publication is None:
            raise CaptureError(
                f"publication {self._settings.publication} was dropped: changes since then are "
                f"lost. {START_OVER}"
            )
        if state.publication_oid != publication.oid:
            raise CaptureError(
                f"publication {self._settings.publication} was dropped and recreated: changes in "
                f"between are lost. {START_OVER}"
            )

    # Transactions

    def open_transactions(self, xids: Iterable[int] | None = None) -> str:
        """Writing transactions, the longest first, for messages."""
        rows = self.connection.execute(_OPEN_TRANSACTIONS).fetchall()
        wanted = None if xids is None else set(xids)
        found = [
            f"pid {pid} ({user}, {application or 'no application_name'}, {state}, {seconds} s)"
            for pid, user, application, state, seconds, xid in rows
            if wanted is None or xid in wanted
        ]
        return listed(found)

    def emit(self, prefix: str, content: str) -> None:
        """A transactional message in the log, flushed, without waiting for standbys."""
        self.connection.execute("SET synchronous_commit = local")
        self.connection.execute("SELECT pg_logical_emit_message(true, %s, %s)", (prefix, content))


def _check_timeline(
    state: CaptureState, position: Position, system: System, history: Sequence[TimelineEnd]
) -> None:
    """Refuse a timeline that has left the one of the stored position before that position. The end
    of the log does not show it: new transactions may have moved it further already."""
    end_lsn = dict(history).get(state.timeline)
    if end_lsn is None:
        raise CaptureError(
            f"the database is on timeline {system.timeline}, which does not continue timeline "
            f"{state.timeline} of the stored position: an old primary, or an older backup. Connect "
            f"to the current primary. If this is the one: {START_OVER}"
        )
    needed = max(position.lsn, position.commit_lsn)
    if end_lsn < needed:
        raise CaptureError(
            f"timeline {system.timeline} began at {format_lsn(end_lsn)}, before the stored "
            f"position {format_lsn(needed)}: a failover or an older backup has lost transactions "
            f"that are in the topics. {START_OVER}"
        )


def connect(database: str) -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(connection_string(database), autocommit=True, prepare_threshold=None)
