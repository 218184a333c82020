"""Holding a stream back until the query has loaded a table: `loadFirst`.

A stream that is enriched from a table's topic begins when the table is there. The option says how
far the query reads the table's topics first: their ends when the query was started, as the
launcher has looked them up. Until then the stream has nothing new to read; after that it is as
any other. How far the query is stands in its checkpoint, in `offsets/N`: Spark plans a batch when
the one before is done, so what the newest file lists has been read.

With every start it begins anew: after an outage the table's backlog is read before the stream's.
A batch that is repeated after a crash has its ends in the checkpoint, and is not held.
"""

from __future__ import annotations

from millstream.pipelines.offsets import Offsets
from millstream.pipelines.query_files import newest_ends, query_id


class Hold:
    """Whether a stream still has to wait."""

    def __init__(self, location: str, awaited: Offsets) -> None:
        self._location = location
        self._awaited = {it: end for it, end in awaited.items() if end > 0}

    def is_over(self) -> bool:
        """Raises `ConfigError` where the checkpoint cannot be read."""
        if not self._awaited:
            return True
        query_id(self._location)  # it is there as soon as the query is
        reached = newest_ends(self._location)
        self._awaited = {it: end for it, end in self._awaited.items() if reached.get(it, -1) < end}
        return not self._awaited
