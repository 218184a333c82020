"""Where a batch goes, if not into a topic: what Spark calls for every micro-batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from millstream.pipelines.checkpoint import Checkpoint
from millstream.pipelines.offsets import to_json
from millstream.pipelines.progress import GroupProgress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.pipelines.stores import Store, TableSpec


class TableSink:
    """Rows and progress in one transaction of the store; then the group's offsets.

    A batch that Spark repeats is skipped by the store, and its offsets are reported again.
    """

    def __init__(
        self,
        query: str,
        store: Store,
        spec: TableSpec,
        checkpoint: Checkpoint,
        progress: GroupProgress,
    ) -> None:
        self._query = query
        self._store = store
        self._spec = spec
        self._checkpoint = checkpoint
        self._progress = progress

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        end = self._checkpoint.batch_end(batch_id)
        self._store.write(batch, batch_id, self._query, self._spec, json.dumps(to_json(end)))
        self._progress.report(end)
