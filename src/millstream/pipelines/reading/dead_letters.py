"""Dead letters of readers: records that do not decode are written to a topic by their task.

Beside the headers of `connect/dead_letters.py`, a letter has `__dlq.errors.pipeline` and
`.pipeline.version`, if the options have them. A task that Spark runs again writes its letters
again.

Letters are gathered, and durable before their task ends. A task that has not ended is run again,
and so no record is skipped whose letter may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from millstream.connect.dead_letters import compose, partition_count, send_letters
from millstream.pipelines.reading.fetching import cluster_of

if TYPE_CHECKING:
    from millstream.pipelines.offsets import OffsetRange
    from millstream.pipelines.reading.decoding.results import Failure
    from millstream.pipelines.reading.options import ReadOptions
    from millstream.records.columns import Columns
    from millstream.records.record import Record

BATCH_BYTES = 512 * 1024


class DeadLetters:
    """The letters of one task: `add` them, and `flush` before it ends."""

    def __init__(self, options: ReadOptions, wanted: OffsetRange) -> None:
        self._options = options
        self._wanted = wanted
        self._topic = options.dead_letters_of(wanted.topic)
        self._group = options.pipeline or options.group_id or options.client_id
        self._about = _about(options)
        self._gathered: list[Record] = []
        self._gathered_bytes = 0

    def add(self, columns: Columns, failures: Sequence[Failure]) -> None:
        """A letter for each failure."""
        if self._topic is None:
            return
        for letter in compose(*self._wanted[:2], columns, failures, self._group, self._about):
            self._gathered.append(letter)
            self._gathered_bytes += len(letter.value or b"")
            self._gathered_bytes += sum(len(it or b"") for _, it in letter.headers)
            if self._gathered_bytes >= BATCH_BYTES:
                self.flush()

    def flush(self) -> None:
        """All of them are durable when this returns."""
        if self._topic is None or not self._gathered:
            return
        # Its own connections: on the reader's a fetch is under way.
        client_id = f"{self._options.client_id}-dead-letters"
        cluster = cluster_of(replace(self._options, client_id=client_id))
        partition = self._wanted.partition % partition_count(cluster, self._topic)
        send_letters(cluster, self._topic, partition, self._gathered)
        self._gathered, self._gathered_bytes = [], 0


def _about(options: ReadOptions) -> dict[str, object]:
    about: dict[str, object] = {}
    if options.pipeline is not None:
        about["pipeline"] = options.pipeline
    if options.pipeline_version is not None:
        about["pipeline.version"] = options.pipeline_version
    return about
