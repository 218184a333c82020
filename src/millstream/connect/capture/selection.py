"""Which tables are captured: those that the settings select, without those that cannot be captured.

A table can be left out because of what others do in the database: they create one without a key,
or one that the role may not read. That must not end the capture of all other tables, so each reason
is reported with its cure, and the table is added once the reason is gone. Only the first start
refuses such tables (`refuse_incomplete`): its user is there to decide.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from millstream.connect.capture.position import TableState
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.tables import CaptureError

OPERATIONS = ("insert", "update", "delete", "truncate")
LISTED_MAX = 5


class SourceTable(NamedTuple):
    """A table of the catalogue, and what the role of the capture may do with it."""

    oid: int
    schema: str
    name: str
    kind: str  # r, or p for a partitioned one
    replica_identity: str
    rows_expected: int
    has_identity: bool  # else UPDATE and DELETE fail once it is published
    may_read: bool
    hides_rows: bool  # by row level security
    may_publish: bool
    role: str  # of the capture

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql_name(self) -> str:
        """The name in the statements of messages."""
        return f"{_quoted(self.schema)}.{_quoted(self.name)}"


class Publication(NamedTuple):
    oid: int
    publishes: frozenset[str]  # insert, update, delete, truncate
    via_root: bool
    is_own: bool  # the role may alter it
    tables: frozenset[str]  # schema.name

    @property
    def unpublished_operations(self) -> list[str]:
        return [it for it in OPERATIONS if it not in self.publishes]


class Selection(NamedTuple):
    """The captured tables by schema.name, and problems with the cure by the name of the table."""

    tables: dict[str, SourceTable]
    left_out: dict[str, str]
    warnings: dict[str, str]  # of captured tables, and of patterns that match none

    @property
    def problems(self) -> dict[str, str]:
        left_out = {name: f"left out: {reason}" for name, reason in self.left_out.items()}
        return left_out | self.warnings


def select(
    settings: CaptureSettings,
    catalogue: Sequence[SourceTable],
    publication: Publication | None,
    known: Mapping[str, TableState],
) -> Selection:
    """`catalogue`: all tables. `known`: the tables of the stored state, in the order in which they
    were added. Without a publication: it is still to be created."""
    wanted = {it.full_name: it for it in catalogue if settings.captures(it.schema, it.name)}
    left_out = {}
    for name, table in wanted.items():
        reason = _reason(settings, table, publication, known.get(name))
        if reason is not None:
            left_out[name] = reason
    left_out |= _shared_topics(settings, [it for it in wanted if it not in left_out], known)
    tables = {name: it for name, it in wanted.items() if name not in left_out}
    warnings = {}
    for name, table in tables.items():
        if not table.has_identity:
            warnings[name] = (
                "it is published without a replica identity, so its UPDATE and DELETE statements "
                f"fail. {_identity_cure(table)}"
            )
        elif name in known and publication is not None and name not in publication.tables:
            warnings[name] = (
                f"publication {settings.publication} lacks it: its changes are missing until a "
                "running capture adds it"
            )
    return Selection(tables, left_out, warnings)


def refuse_incomplete(settings: CaptureSettings, selection: Selection) -> None:
    """Refuse a first start without some of the tables."""
    if selection.left_out:
        reasons = [f"{name}: {reason}" for name, reason in selection.left_out.items()]
        raise CaptureError(f"cannot capture {listed(reasons, '; ')}")
    if not selection.tables:
        reasons = [f"{name}: {reason}" for name, reason in selection.warnings.items()]
        raise CaptureError(
            f"no table matches {', '.join(settings.tables)}. {listed(reasons, '; ')}"
        )


def unmatched_patterns(
    settings: CaptureSettings, catalogue: Sequence[SourceTable], roots: Mapping[str, str]
) -> dict[str, str]:
    """Patterns that match no table: perhaps they are misspelt. `roots`: the partitioned tables of
    partitions, by schema.name."""
    names = [it.full_name for it in catalogue]
    found = {}
    for pattern in settings.tables:
        if pattern.startswith("!") or fnmatch.filter(names, pattern):
            continue
        close = get_close_matches(pattern, names, n=1)
        if pattern in roots:
            found[pattern] = f"it is a partition of {roots[pattern]}: name that table instead"
        elif close:
            found[pattern] = f"no such table; did you mean {close[0]}?"
        else:
            found[pattern] = "no such table; views, foreign and unlogged tables are not captured"
    return found


def listed(items: Sequence[str], separator: str = ", ") -> str:
    more = f" and {len(items) - LISTED_MAX} more" if len(items) > LISTED_MAX else ""
    return separator.join(items[:LISTED_MAX]) + more


# Reasons


def _shared_topics(
    settings: CaptureSettings, names: Sequence[str], known: Mapping[str, TableState]
) -> dict[str, str]:
    """Tables whose topic is that of another one. The table that was added first keeps it."""
    owners = dict.fromkeys(settings.own_topics, "the capture itself writes it")
    before = [name for name in known if name in names]
    found = {}
    for name in [*before, *(it for it in names if it not in known)]:
        topic = settings.topic_of(*name.split(".", 1))
        if topic in owners:
            found[name] = (
                f"its topic is {topic}, but {owners[topic]}. Change topic ({settings.topic!r}), or "
                f"exclude the table: {_exclusion(name)}"
            )
        else:
            owners[topic] = f"this is the topic of {name}"
    return found


def _reason(
    settings: CaptureSettings,
    table: SourceTable,
    publication: Publication | None,
    before: TableState | None,
) -> str | None:
    """Why a table is left out, and the cure."""
    is_published = publication is not None and table.full_name in publication.tables
    if not is_published and not table.has_identity:
        return (
            "it has no replica identity. Publishing it would make its UPDATE and DELETE statements "
            f"fail. {_identity_cure(table)}"
        )
    if publication is not None and table.kind == "p" and not publication.via_root:
        return (
            f"publication {settings.publication} publishes partitions. Run `ALTER PUBLICATION "
            f"{settings.publication} SET (publish_via_partition_root = true)`"
        )
    if publication is not None and not is_published:
        reason = _unpublished_reason(settings, table, publication)
        if reason is not None:
            return reason
    if _is_copied(settings, table, before):
        return None
    return _unreadable_reason(table)


def _unpublished_reason(
    settings: CaptureSettings, table: SourceTable, publication: Publication
) -> str | None:
    statement = f"ALTER PUBLICATION {settings.publication} ADD TABLE {table.sql_name}"
    if not settings.manage_publication:
        return (
            f"publication {settings.publication} lacks it, and manage_publication is off. Run "
            f"`{statement}`, or exclude it: {_exclusion(table.full_name)}"
        )
    if not (table.may_publish and publication.is_own):
        return (
            f"role {table.role} must own the table and the publication to add it. Let an owner "
            f"run `{statement}`, or exclude it: {_exclusion(table.full_name)}"
        )
    return None


def _unreadable_reason(table: SourceTable) -> str | None:
    if not table.may_read:
        return (
            f"role {table.role} may not read it. Run `GRANT SELECT ON {table.sql_name} TO "
            f"{_quoted(table.role)}` and grant USAGE on its schema, or exclude the table: "
            f"{_exclusion(table.full_name)}"
        )
    if table.hides_rows:
        return (
            f"row level security hides rows of it from role {table.role}. Run `ALTER ROLE "
            f"{_quoted(table.role)} BYPASSRLS`, or exclude the table: {_exclusion(table.full_name)}"
        )
    return None


def _is_copied(settings: CaptureSettings, table: SourceTable, before: TableState | None) -> bool:
    """Whether none of its rows has to be read any more."""
    if before is None:
        return settings.snapshot == "never"
    return before.is_done and before.oid == table.oid


def _identity_cure(table: SourceTable) -> str:
    return (
        "Add a primary key that is not DEFERRABLE, or run `ALTER TABLE "
        f"{table.sql_name} REPLICA IDENTITY FULL`, or exclude it: {_exclusion(table.full_name)}"
    )


def _exclusion(name: str) -> str:
    return f'tables = [..., "!{name}"]'


def _quoted(name: str) -> str:
    if re.fullmatch(r"[a-z_][a-z0-9_]*", name):
        return name
    return '"' + name.replace('"', '""') + '"'
