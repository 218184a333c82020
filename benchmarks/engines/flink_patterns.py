"""PyFlink: MATCH_RECOGNIZE in SQL, one job for each line "pattern keys rows until" of the input.

Rows are computed by Flink's own generator, without a file or a topic that must be decoded, and have
a watermark of a second. State is on the heap, with a checkpoint every ten seconds. Matches are
written to a CSV file, so that they can be compared; only those
that ended before `until`.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

# The pattern, its conditions, and all its rows as a number.
PATTERNS = {
    "p1": (
        "A B+ C",
        "A AS A.u < 10, B AS B.u >= 10 AND B.u < 60, C AS C.u >= 60",
        "2 + COUNT(B.u)",
    ),
    "p2": ("A B", "A AS A.u < 3, B AS B.u >= 95", "2"),
    "v": (
        "A B+ C",
        "B AS (LAST(B.u, 1) IS NULL AND B.u < A.u) OR B.u < LAST(B.u, 1), C AS C.u > LAST(B.u)",
        "2 + COUNT(B.u)",
    ),
}
LAST_VARIABLE = {"p1": "C", "p2": "B", "v": "C"}


def environment(directory: str) -> TableEnvironment:
    settings = Configuration()
    settings.set_string("parallelism.default", "1")
    settings.set_string("table.local-time-zone", "UTC")
    settings.set_string("execution.checkpointing.interval", "10 s")
    settings.set_string("execution.checkpointing.dir", f"file://{directory}/checkpoints")
    mode = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(settings)
    return TableEnvironment.create(mode.build())


def run(
    tables: TableEnvironment, directory: str, pattern: str, keys: int, rows: int, until: int
) -> dict[str, int]:
    sink = Path(tempfile.mkdtemp(dir=directory))
    for name in ("events", "sink"):
        tables.execute_sql(f"DROP TABLE IF EXISTS {name}")
    part = "MOD(id, CAST(1000003 AS BIGINT))"  # a remainder has the type of the divisor
    tables.execute_sql(
        f"""CREATE TABLE events (id BIGINT, k AS MOD(id * 7919, CAST({keys} AS BIGINT)),
                u AS MOD(MOD({part} * {part} * 31 + id * 17, CAST(100003 AS BIGINT)), 100),
                `at` AS TO_TIMESTAMP_LTZ(id, 3),
                WATERMARK FOR `at` AS `at` - INTERVAL '1' SECOND)
            WITH ('connector' = 'datagen', 'rows-per-second' = '1000000000',
                'fields.id.kind' = 'sequence', 'fields.id.start' = '0',
                'fields.id.end' = '{rows - 1}')"""
    )
    tables.execute_sql(
        f"""CREATE TABLE sink (k BIGINT, n BIGINT, began BIGINT, ended BIGINT)
            WITH ('connector' = 'filesystem', 'path' = 'file://{sink}', 'format' = 'csv')"""
    )
    sequence, conditions, count = PATTERNS[pattern]
    last = LAST_VARIABLE[pattern]
    tables.execute_sql(
        f"""INSERT INTO sink SELECT k, n, began, ended FROM events MATCH_RECOGNIZE (
                PARTITION BY k ORDER BY `at`
                MEASURES {count} AS n, A.id AS began, {last}.id AS ended
                ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW
                PATTERN ({sequence}) WITHIN INTERVAL '1' MINUTE
                DEFINE {conditions}) WHERE ended < {until}"""
    ).wait()
    found = list(matches_in(sink))
    return {
        "matches": len(found),
        "rows": sum(n for n, _, _ in found),
        "began": sum(began for _, began, _ in found),
        "ended": sum(ended for _, _, ended in found),
    }


def matches_in(directory: Path) -> Iterator[tuple[int, int, int]]:
    for path in directory.rglob("*"):
        if path.is_file():
            with path.open() as file:
                for _, n, began, ended in csv.reader(file):
                    yield int(n), int(began), int(ended)


def main() -> None:
    directory = sys.argv[1]
    tables = environment(directory)
    for line in sys.stdin:
        pattern, *numbers = line.split()
        print(json.dumps(run(tables, directory, pattern, *map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()
