"""PyFlink's MATCH_RECOGNIZE, in its own environment: `tests/peers/flink.py` asks it.

A line of input is JSON: rows of (part, id, value, milliseconds) in the order of arrival, how many
milliseconds the watermark is behind them, and clauses, all of which are matched in one job. The
answer is a line of JSON, with the rows of each clause, or an error.
"""

from __future__ import annotations

import csv
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment


def environment() -> TableEnvironment:
    settings = Configuration()
    settings.set_string("parallelism.default", "1")
    settings.set_string("table.local-time-zone", "UTC")
    # The watermark follows every row, so that which rows are late does not depend on the clock.
    settings.set_string("pipeline.auto-watermark-interval", "0 ms")
    mode = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings)
    return TableEnvironment.create(mode.build())


def run(tables: TableEnvironment, asked: dict[str, Any], directory: Path) -> list[list[Any]]:
    with (directory / "rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows(asked["rows"])
    tables.execute_sql("DROP TABLE IF EXISTS events")
    tables.execute_sql(
        f"""CREATE TABLE events (part STRING, id BIGINT, v BIGINT, ms BIGINT,
                moment AS TO_TIMESTAMP_LTZ(ms, 3),
                WATERMARK FOR moment AS moment - INTERVAL '{asked["delay_ms"] / 1000:.3f}' SECOND)
            WITH ('connector' = 'filesystem', 'path' = 'file://{directory}', 'format' = 'csv')"""
    )
    columns = ", ".join(asked["columns"])
    queries = [
        f"SELECT {at} AS clause, {columns} FROM events MATCH_RECOGNIZE ({it})"
        for at, it in enumerate(asked["clauses"])
    ]
    found: list[list[Any]] = [[] for _ in queries]
    with tables.execute_sql(" UNION ALL ".join(queries)).collect() as rows:
        for row in rows:
            clause, *values = row
            found[clause].append(values)
    return found


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the JVM prints is no answer
    tables = environment()
    for line in sys.stdin:
        answer: dict[str, Any]
        with tempfile.TemporaryDirectory(prefix="flink-rows-") as directory:
            try:
                answer = {"results": run(tables, json.loads(line), Path(directory))}
            except Exception as error:  # noqa: BLE001  the test's matter
                answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
