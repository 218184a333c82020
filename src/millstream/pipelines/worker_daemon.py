"""Spark's daemon for Python workers, which imports what tasks of pipelines need before it forks.

Spark starts one daemon, which forks a worker for every task that finds no idle one. A worker then
imports what its task needs, which takes a second of a core for our pipelines, in every worker.
After each task, `gc.collect()` traverses all of it. Workers that are forked from this daemon have
all imports at once, in shared memory, and frozen, so that the collector skips them.

    spark.python.daemon.module    millstream.pipelines.worker_daemon

`millstream run` sets it if everything runs on one machine. On a cluster, every executor must be
able to import it: see docs/guides/cluster.md.
"""

from __future__ import annotations

import os

from pyspark.daemon import manager

from millstream.pipelines.workers import preload

# The threads that some of these start (Arrow's allocator, numpy's BLAS) survive a fork.
PRELOADED = (
    "pyspark.worker",
    "pandas",  # pyarrow imports it for the first array from a list
    "pyarrow.compute",
    "duckdb",  # which writes JSON
    "asyncio",  # kio imports it
    "encodings.idna",  # to connect to a broker
    "millstream.pipelines.source",
    "millstream.pipelines.reading.typed",
    "millstream.pipelines.reading.decoding.rows",
    "millstream.pipelines.writing.writer",
    "millstream.pipelines.running.fan_out",
)


def main() -> None:
    preload(*PRELOADED)
    try:
        manager()
    except SystemExit as end:
        # At once: an interpreter that finalizes its modules complains about frozen objects.
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    main()
