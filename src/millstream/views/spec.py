"""Views in a store, and the stamps that say which part of the log they stand for.

A pipeline writes its views in one transaction, together with a stamp: a number that grows by one
with every batch, and the offsets up to which the batch has read each partition. Two tables of the
store have this:

    millstream_views    query, view, document       where a view is, its key, columns and writer
    millstream_stamps   query, number, offsets, ids  the last stamps of a query, with topic ids
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from millstream.connect.tables.schema import Column, quote
from millstream.errors import ViewError
from millstream.partitions import TopicPartition

FORMAT = 2
NUMBER = "millstream_number"  # columns of history tables
EXISTED = "millstream_existed"


@dataclass(frozen=True)
class Stamp:
    """What views stand for: all records before these offsets, and no others."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)  # of each query

    @classmethod
    def parse(cls, query: str, number: int, offsets: str | None, ids: str | None) -> Stamp:
        """The stamp of one query, from the columns of the store."""
        nested = {} if offsets is None else json.loads(offsets)
        return cls(
            {
                (topic, int(partition)): int(offset)
                for topic, partitions in nested.items()
                for partition, offset in partitions.items()
            },
            {} if ids is None else json.loads(ids),
            {query: number},
        )

    def as_json(self) -> dict[str, Any]:
        """The stamp as JSON has it: offsets by topic and partition, ids of topics, numbers."""
        nested: dict[str, dict[str, int]] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            nested.setdefault(topic, {})[str(partition)] = offset
        return {"offsets": nested, "topic_ids": dict(self.topic_ids), "numbers": dict(self.numbers)}


@dataclass(frozen=True)
class ViewEntry:
    """A view as readers find it in the store. Names of tables are quoted and qualified."""

    view: str
    table: str
    history: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    keeps: int  # for how many stamps the view can be read as it was
    since: int  # the first stamp that it can be read at
    writer: str  # the query that writes it, whose stamps count

    def encode(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)})

    @classmethod
    def decode(cls, text: str) -> ViewEntry:
        """Raises `ViewError` if another version of Millstream has written it."""
        found = json.loads(text)
        if found.pop("format", None) != FORMAT:
            raise ViewError(
                f"view {found.get('view')} was written by another version of Millstream: use that "
                "one to read it, or start its pipeline with this one"
            )
        columns = tuple(Column(**it) for it in found.pop("columns"))
        return cls(**{**found, "key": tuple(found["key"]), "columns": columns})

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(it.name for it in self.columns)

    @property
    def key_columns(self) -> tuple[Column, ...]:
        by_name = {it.name: it for it in self.columns}
        return tuple(by_name[name] for name in self.key)

    def listed(self, prefix: str = "") -> str:
        """All columns, for SQL."""
        return ", ".join(prefix + quote(name) for name in self.names)
