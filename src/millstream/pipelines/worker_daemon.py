"""Spark's daemon of Python workers, with what tasks of pipelines import in it before it forks them.

Spark starts one daemon and has it fork a worker for every task that finds none idle. A worker then
imports what its task needs: a second of a core for a pipeline of ours, in every worker, and after
each task `gc.collect()` looks at all of it. Forked from here it has that at once, in memory that it
shares with the others, and out of the collector's sight.

    spark.python.daemon.module    millstream.pipelines.worker_daemon

`millstream run` sets it where all runs on one machine. On a cluster every executor must be able to
import it: see docs/guides/cluster.md.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from importlib import import_module

from pyspark.daemon import manager

# The threads that some of these start (Arrow's allocator, numpy's BLAS) are known to get over
# a fork.
PRELOADED = (
    "pyspark.worker",
    "pandas",  # which pyarrow imports with the first array that it makes of a list
    "pyarrow.compute",
    "duckdb",  # which reads and writes JSON
    "millstream.pipelines.source",
    "millstream.pipelines.reading.typed",
    "millstream.pipelines.writing.writer",
    "millstream.pipelines.running.fan_out",
)


def preload() -> None:
    """Import what there is of it; what fails here, fails where it is needed, with a reason."""
    # Spark reads from our standard output where to find us.
    with contextlib.redirect_stdout(sys.stderr):
        for name in PRELOADED:
            with contextlib.suppress(Exception):
                import_module(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    preload()
    try:
        manager()
    except SystemExit as end:
        # At once: an interpreter that takes modules apart complains of what is frozen.
        os._exit(end.code if isinstance(end.code, int) else 1)


if __name__ == "__main__":
    main()
