"""The batch over the shop's log: the pipelines' own functions, over all that the topics hold.

    python -m millstream.cli.shop.history ADDRESS RESULT LOG     writes its rows to RESULT, as JSON

The streams ran in many small batches and were killed in between; this is what they should have
made. It reads only what customers sent, nothing that pipelines wrote.

Spark takes its time to start, so this may be started early: it reads once its input has ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.cli.shop.pipelines import enrich, interest, sales
from millstream.pipelines.running.outputs import rows_of
from millstream.pipelines.running.session import create_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MASTER = "local[2]"
# Spark for two minutes on two cores: most of what a JVM does to become fast would come too late.
# With this compiler alone, it has less room for code, and collects all garbage to find some.
SPARK = {
    "spark.driver.extraJavaOptions": (
        "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
    ),
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

Rows = list[list[Any]]  # in the order of COLUMNS; moments in microseconds since 1970
COLUMNS = {
    "enriched": ("id", "customer", "product", "department", "amount", "unix_micros(at)"),
    "alerts": ("customer", "id", "product", "amount"),
    "sales": ("unix_micros(since)", "product", "orders", "revenue"),
    "interest": ("unix_micros(since)", "product", "views"),
}


def compute(spark: SparkSession, address: str) -> dict[str, Rows]:
    """What each output should hold."""
    both = enrich.batch(spark, broker=address).cache()
    enriched = rows_of(both, "enriched")
    frames: dict[str, DataFrame] = {
        "enriched": enriched,
        "alerts": rows_of(both, "alerts"),
        "sales": sales(enriched),
        "interest": interest.batch(spark, broker=address),
    }
    return {
        name: [list(row) for row in frame.selectExpr(*COLUMNS[name]).collect()]
        for name, frame in frames.items()
    }


def main(address: str, result: str, log: str) -> None:
    spark = create_session(MASTER, SPARK, "millstream demo: history", Path(log))
    sys.stdin.read()
    rows = compute(spark, address)
    Path(result).write_text(json.dumps(rows))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
