"""What is read out of a query's progress."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from millstream.pipelines import pipeline, table, topic
from millstream.pipelines.running.status import (
    Watched,
    failed_records,
    kept_state,
    lag_of,
    late_rows,
    watermark_of,
)


def progress(batch: int, rows: int, *, end: int = 0, latest: int = 0, failed: int = 0) -> Any:
    return SimpleNamespace(
        json=json.dumps(
            {
                "batchId": batch,
                "numInputRows": rows,
                "durationMs": {"addBatch": 5, "triggerExecution": 40 + batch},
                "sources": [{"endOffset": {"t": {"0": end}}, "latestOffset": {"t": {"0": latest}}}],
                "observedMetrics": {"millstream.t": {"failed": failed}, "their": {"x": 1}},
            }
        )
    )


def test_lag_is_what_is_there_and_not_read() -> None:
    assert lag_of(json.loads(progress(1, 1, end=7, latest=10).json)) == 3
    assert lag_of({"sources": [{"endOffset": None, "latestOffset": None}]}) is None
    others = [{"endOffset": 5, "latestOffset": 7}, {"endOffset": {"logOffset": 0}}]
    assert lag_of({"sources": others}) is None
    ours = json.loads(progress(1, 1, end=7, latest=10).json)["sources"]
    assert lag_of({"sources": [*others, *ours]}) == 3


def test_only_our_own_observations_count_as_failed() -> None:
    assert failed_records(json.loads(progress(1, 1, failed=2).json)) == 2
    assert failed_records({}) == 0


def test_status_counts_every_batch_once_also_those_that_were_not_looked_at() -> None:
    query = SimpleNamespace(
        isActive=True,
        status={"isTriggerActive": False},
        lastProgress=None,
        recentProgress=[],
        exception=lambda: None,
    )
    declared = pipeline(reads=topic("t"), writes=table("t"), name="p")(lambda frame: frame)
    watched = Watched(declared.name, query, declared)  # type: ignore[arg-type]
    assert watched.update().state == "waiting"
    query.recentProgress = [progress(it, 10, failed=1) for it in range(4)]
    query.lastProgress = query.recentProgress[-1]
    watched.update()
    query.isActive = False
    status = watched.update()
    assert (status.state, status.batches, status.rows, status.failed) == ("done", 4, 40, 4)
    assert status.batch_ms == 43


def test_a_query_that_died_has_failed() -> None:
    query = SimpleNamespace(isActive=False, lastProgress=None, exception=lambda: ValueError("x"))
    assert Watched("p", query).update().state == "failed"  # type: ignore[arg-type]


def test_state_is_counted_in_rows_for_sparks_operators_and_in_bytes_for_all() -> None:
    join = {"operatorName": "symmetricHashJoin", "numRowsTotal": 70, "memoryUsedBytes": 900}
    ours = {
        "operatorName": "transformWithStateInPandasExec",
        "numRowsTotal": 34,
        "memoryUsedBytes": 50,
        "customMetrics": {"rocksdbSstFileSize": 4000},
    }
    assert kept_state({"stateOperators": [join, ours]}) == (70, 4900)
    assert kept_state({"stateOperators": []}) == (0, 0)


def test_late_rows_are_counted_by_operator_ours_and_sparks() -> None:
    progress = {
        "observedMetrics": {
            "late.tumbling 10 minutes": {"dropped": 3},
            "millstream.t": {"failed": 1},
        },
        "stateOperators": [
            {"operatorName": "stateStoreSave", "numRowsDroppedByWatermark": 2},
            {"operatorName": "dedupe", "numRowsDroppedByWatermark": 0},
        ],
    }
    assert late_rows(progress) == {"late.tumbling 10 minutes": 3, "stateStoreSave": 2}
    assert late_rows({}) == {}


def test_the_watermark_is_unix_time_once_there_is_one() -> None:
    assert watermark_of({"eventTime": {"watermark": "2026-11-17T18:00:00.250Z"}}) == 1794938400250
    assert watermark_of({"eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}}) is None
    assert watermark_of({"eventTime": {}}) is None
    assert watermark_of({}) is None
