"""The fixtures of this room's tests on Spark."""

from tests.pipelines.analytics.events import rocksdb, stage

__all__ = ["rocksdb", "stage"]
