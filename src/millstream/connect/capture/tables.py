"""Descriptions of captured tables, and the errors of capture.

A `Table` is one version of a table's layout: a schema change makes another one. It is built from a
Relation message of pgoutput and from the catalogue, which has the primary key.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.errors import MillstreamError

# How the server prints values depends on the session. Both the replication connection and the
# connections that copy the snapshot need these, or the same value gives two different records.
SESSION_OPTIONS = (
    "-c client_encoding=UTF8 -c datestyle=ISO -c timezone=UTC -c intervalstyle=iso_8601"
    " -c bytea_output=hex -c extra_float_digits=3 -c lc_monetary=C"
)

FULL_IDENTITY = "f"  # pg_class.relreplident


class CaptureError(MillstreamError):
    """Changes cannot be captured: the message names the table and the reason."""


class StaleTypes(CaptureError):
    """A value does not fit the known definition of its type: load the catalogue again."""


@dataclass(frozen=True)
class Column:
    """A column as a Relation message describes it."""

    name: str
    type_oid: int
    type_modifier: int = -1


@dataclass(frozen=True)
class Table:
    """One version of a table's layout."""

    oid: int
    schema: str
    name: str
    columns: tuple[Column, ...]  # in the order of the Relation message; COPY must list them so
    key: tuple[str, ...] = ()  # columns of the record key; none: records have no key
    replica_identity: str = "d"  # pg_class.relreplident: d(efault), f(ull), i(ndex), n(othing)
    identity: tuple[str, ...] = ()  # columns that the Relation message flags

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        missing = [name for name in (*self.key, *self.identity) if name not in names]
        if missing:
            raise CaptureError(f"table {self.full_name} has no column {', '.join(missing)}")
        if self.replica_identity in ("d", "i") and self.identity:
            unsent = [name for name in self.key if name not in self.identity]
            if unsent:
                raise CaptureError(
                    f"table {self.full_name}: {', '.join(unsent)} cannot be part of the key, since "
                    "PostgreSQL does not send it for deletes; use the columns of the replica "
                    f"identity ({', '.join(self.identity)}), or set REPLICA IDENTITY FULL"
                )

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}"
