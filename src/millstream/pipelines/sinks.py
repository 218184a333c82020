"""Where a batch goes, if not into a topic: what Spark calls for every micro-batch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from millstream.pipelines.claims import ClaimedCheckpoint
from millstream.pipelines.offsets import to_json
from millstream.pipelines.progress import GroupProgress

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from millstream.pipelines.stores import Store, TableSpec

QUERY_ID_PROPERTY = "sql.streaming.queryId"


class TableSink:
    """Rows and progress in one transaction of the store; then the group's offsets.

    The store knows the query by the id in its checkpoint, not by its name: whoever starts with a
    new checkpoint begins at batch 0 again, and none of that has been written yet.
    """

    def __init__(
        self, store: Store, spec: TableSpec, checkpoint: ClaimedCheckpoint, progress: GroupProgress
    ) -> None:
        self._store = store
        self._spec = spec
        self._checkpoint = checkpoint
        self._progress = progress

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        query_id = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
        assert query_id is not None
        end = self._checkpoint.batch_end(batch_id)
        self._store.write(batch, batch_id, query_id, self._spec, json.dumps(to_json(end)))
        self._progress.report(end)
