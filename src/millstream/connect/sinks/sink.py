"""A sink: a target that takes changes together with the position in the log that they lead to.

`apply` is atomic: all of a write and its position, or nothing; a target without transactions may
keep rows of a write that fails, and then repeating it changes nothing. If it raises
`PositionMoved`, the caller reads the positions and continues from there; if it raises
`RowsRefused`, the caller leaves these rows out and applies the write again; if it raises
`SinkUnavailable`, or anything else, the caller opens the sink again first, because the outcome of
the write is unknown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self

from millstream.connect.sinks.changes import Changes, Failure, Key, Row
from millstream.connect.sinks.positions import Place, Position, Step
from millstream.errors import MillstreamError, StoreError

if TYPE_CHECKING:
    import pyarrow as pa

REBUILD_SUFFIX = "__rebuild"


class OutOfStep(MillstreamError):
    """The target cannot be kept in step any more; the message says what to do."""


class TablesReplaced(OutOfStep):
    """Tables that have rows are not those that the positions belong to."""

    def __init__(self, message: str, tables: Sequence[str]) -> None:
        super().__init__(message)
        self.tables = tables


class SinkUnavailable(StoreError):
    """The target cannot be reached, or refuses temporarily; the same may succeed later."""


class RowsRefused(MillstreamError):
    """The target does not take some rows: their records, by topic."""

    def __init__(self, failures: Mapping[str, Sequence[Failure]]) -> None:
        super().__init__(f"rows are refused: {dict(failures)}")
        self.failures = failures


def refuse_replaced(tables: Sequence[str], sink: str) -> None:
    """Raise if there are such tables."""
    if tables:
        raise TablesReplaced(
            f"sink {sink}: tables {list(tables)} have rows, and the positions belong to other "
            "tables of these names: they were dropped and created again, or copied from elsewhere. "
            "Delete their rows, so that the sink fills them from the beginning, or run with "
            "--rebuild",
            tables,
        )


class RebuildUnsupported(MillstreamError):
    """This kind of target is not rebuilt beside itself."""


@dataclass(frozen=True)
class Target:
    """Where the changes of one topic go."""

    topic: str
    table: str  # a table, an index, or a prefix of keys
    key: tuple[str, ...]
    columns: pa.Schema | None = None  # None: rows are documents and have any fields
    fields: tuple[str, ...] = ()  # of a search index: indexed text
    stored: tuple[str, ...] = ()  # of a search index: stored beside it

    @property
    def names(self) -> tuple[str, ...] | None:
        """The columns or fields that the target has; None: any."""
        if self.columns is not None:
            return tuple(self.columns.names)
        return (*self.key, *self.fields, *self.stored) if self.fields or self.stored else None


class Run(NamedTuple):
    """Records of one partition that follow each other in a write."""

    partition: int
    offsets: Sequence[int]


@dataclass(frozen=True)
class Part:
    """The changes of one topic in a write: as Arrow columns if its target declares columns."""

    changes: Changes
    rows: pa.Table | None = None
    runs: Sequence[Run] = ()  # of the records, in their order

    def origin(self, record: int) -> tuple[int, int]:
        """The partition and the offset of a record."""
        for run in self.runs:
            if record < len(run.offsets):
                return run.partition, run.offsets[record]
            record -= len(run.offsets)
        raise IndexError(record)


@dataclass(frozen=True)
class Write:
    """Changes by topic, and the positions before and after them."""

    steps: tuple[Step, ...]
    parts: Mapping[str, Part]

    @property
    def row_count(self) -> int:
        return sum(len(part.changes.changes) for part in self.parts.values())


class Sink(ABC):
    """See the module. One thread at a time."""

    rows_max = 50_000  # of one write
    pause_seconds = 0.0  # between writes, while the topics are followed
    keeps_history = False  # the target keeps changes instead of rows
    may_rebuild = True  # beside itself
    may_write_again = False  # rows, without a new position: `apply` with steps that stay in place

    def __init__(self, name: str, targets: Sequence[Target]) -> None:
        self.name, self.targets = name, tuple(targets)

    @abstractmethod
    def open(self) -> None:
        """Connect, and create or check the targets; also after a failure."""

    @abstractmethod
    def positions(self) -> dict[Place, Position]:
        """How far the targets are; nothing for a target that was deleted and created again. Raises
        `TablesReplaced` if such a target has rows, because they may be of deleted keys."""

    @abstractmethod
    def apply(self, write: Write) -> None:
        """Apply a write, or raise; see the module."""

    def rest(self) -> None:  # noqa: B027 - most targets have nothing to let go of
        """Everything is applied for now: let go of what others may wait for."""

    @abstractmethod
    def written_at(self, target: Target) -> float | None:
        """The time of the last write of its topic in seconds since 1970, by the clock of the
        writer."""

    def stored_rows(self, target: Target, keys: Sequence[Key]) -> dict[Key, Row]:
        """Rows that the target has, in the form of JSON; not if it keeps changes instead."""
        raise NotImplementedError

    @abstractmethod
    def rows(self, target: Target) -> Iterator[tuple[str, Row]]:
        """All rows, documents or, if it keeps these, changes that the target has, in the form of
        JSON, each with its key as one string (`document_id`). Read them before anything else."""

    @abstractmethod
    def purge(self) -> list[str]:
        """Remove what is left of deleted rows in files of the target. Returns where they may still
        be, for people."""

    @abstractmethod
    def close(self) -> None: ...

    def rebuilt(self) -> Sink:
        """A sink beside this one, empty, for a rebuild; not opened."""
        raise RebuildUnsupported(f"a {type(self).__name__} cannot be rebuilt beside itself")

    def switch(self, rebuilt: Sink) -> None:
        """Replace the targets with the rebuilt ones, rows and positions at once."""
        raise RebuildUnsupported(f"a {type(self).__name__} cannot be rebuilt beside itself")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
