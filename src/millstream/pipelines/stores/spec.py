"""What a store remembers about a query, and a batch as its writer presents it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

FORGOTTEN = -1  # the batch of a query that was forgotten: any batch may be its next


@dataclass(frozen=True)
class Progress:
    """How far a query is in a store: written in the transaction of the rows."""

    query: str
    epoch: int  # counts the runs that claimed the query; the last one may write
    batch_id: int | None = None  # the last batch that is in the tables
    offsets: str | None = None  # where its sources stood after that batch, as JSON
    decision: str | None = None  # what else was decided with it: open Kafka transactions, as JSON
    checkpoint: str | None = None  # the id of the checkpoint that numbered the batches
    tables: str | None = None  # the identities of its tables, by name, as JSON


@dataclass(frozen=True)
class Role:
    """The versions of a pipeline at the beginning of a batch: how often they had been switched."""

    pipeline: str
    number: int


@dataclass(frozen=True)
class BatchMark:
    """A batch as its writer presents it."""

    query: str
    batch_id: int
    offsets: str | None = None
    decision: str | None = None
    checkpoint: str | None = None
    begins: str | None = None  # where its sources stood before it, as JSON, if that is known
    # The identities of the tables it goes to, by name: a table that was dropped and created again
    # has another one. None while that is not known.
    tables: Mapping[str, str] | None = None
    topic_ids: str | None = None  # of its sources, as JSON, for the stamp of views
    role: Role | None = None  # of a deployed version; the batch is written only if it still holds
