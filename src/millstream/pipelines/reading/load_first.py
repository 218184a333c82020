"""Holding a stream back until the query has loaded a table: `loadFirst`.

A stream that is enriched from a table's topic must begin after the table is loaded. The option has
the offsets up to which the query reads the table's topics first: their ends when the query was
started. Until then the stream has nothing new to read. The progress of the query is in its
checkpoint, in `offsets/N`: Spark plans a batch when the one before is done, so everything up to the
offsets in the newest file has been read.

Every start of the query loads first: after an outage, the table's backlog is read before the
stream's. A batch that is repeated after a crash has its ends in the checkpoint, and is not held.
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
        """Raises `ConfigError` if the checkpoint cannot be read."""
        if not self._awaited:
            return True
        query_id(self._location)  # it exists as soon as the query does
        reached = newest_ends(self._location)
        self._awaited = {it: end for it, end in self._awaited.items() if reached.get(it, -1) < end}
        return not self._awaited
