"""Windows on Spark: a stream equals a batch, stragglers go where they should, Spark drops none."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from millstream.pipelines.windows import (
    Window,
    calendar,
    hopping,
    session,
    sliding,
    tumbling,
)
from tests.pipelines.windows.streams import COLUMNS, END, Files, Run, seconds_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

SPEC: dict[str, Any] = {
    "n": "count(*)",
    "spent": "sum(amount)",
    "mean": "avg(amount)",
    "most": "max(amount)",
}
Batch = list[tuple[Any, ...]]


@pytest.fixture
def files(spark: SparkSession, tmp_path: Path) -> Iterator[Files]:
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    yield Files(spark, tmp_path)
    spark.conf.set(STORE_PROVIDER, str(before))


def shuffled(count: int, disorder_seconds: float) -> list[Batch]:
    """Rows that are out of order by less than this, in four batches, and an end."""
    rng = random.Random(5)
    rows = [
        (rng.choice(["ann", "bob", None]), rng.uniform(0, 600), rng.randrange(800) / 8)
        for _ in range(count)
    ]
    rows.sort(key=lambda row: row[1] + rng.uniform(0, disorder_seconds))
    size = count // 4
    return [*(rows[begin : begin + size] for begin in range(0, count, size)), [END]]


def comparable(rows: list[Row]) -> list[tuple[Any, ...]]:
    """One row for each key and window: the last that came."""
    latest = {(row.user, row.window_start, row.window_end): row for row in rows}
    return sorted(
        (
            (row.user or "", row.window_start, row.window_end, row.n, row.spent, row.mean, row.most)
            for row in latest.values()
            if row.user != "end"
        ),
    )


KINDS: dict[str, Callable[[], Window]] = {
    "tumbling": lambda: tumbling("1 minute", key="user", time="time", **SPEC),
    "hopping": lambda: hopping("1 minute", "25 seconds", key="user", time="time", **SPEC),
    "session": lambda: session("4 seconds", key="user", time="time", **SPEC),
    "calendar": lambda: calendar("day", "Europe/Berlin", key="user", time="time", **SPEC),
    "waiting": lambda: tumbling(
        "1 minute", key="user", time="time", allowed_lateness="30 seconds", **SPEC
    ),
    "changing": lambda: hopping(
        "1 minute", "30 seconds", key="user", time="time", emit="change", **SPEC
    ),
    "corrected": lambda: tumbling(
        "20 seconds",
        key="user",
        time="time",
        stragglers="correct",
        allowed_lateness="10 minutes",
        **SPEC,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_stream_equals_batch(files: Files, kind: str) -> None:
    files.write(shuffled(400, disorder_seconds=9))
    window = KINDS[kind]()
    expected = files.history().transform(window).collect()
    delay = "0 seconds" if kind == "corrected" else "10 seconds"
    run = files.run(files.stream(delay).transform(window))
    assert comparable(run.rows) == comparable(expected)
    assert run.dropped_by_spark == 0
    assert expected
    if kind != "corrected":
        assert run.dropped_by_us(window.lateness.count_as) == 0
    finals = [row for row in run.rows if row["_kind"] == "final"]
    assert len(finals) == len({(row.user, row.window_start, row.window_end) for row in finals})


VALUES = "count(*), sum(amount), avg(amount), max(amount)"
BY_DUCKDB = {
    "tumbling": f"""
        select who, floor(s / 60) * 60 as b, b + 60, {VALUES} from events group by who, b""",
    "hopping": f"""
        select who, b, b + 60, {VALUES}
        from (select *, unnest(range(-75, 700, 25)) as b from events)
        where b <= s and s < b + 60 group by who, b""",
    "session": f"""
        with marked as (
            select *, s - lag(s) over (partition by who order by s) >= 4 as is_new from events),
        numbered as (
            select *, count(*) filter (is_new) over (partition by who order by s) as n from marked)
        select who, min(s), max(s) + 4, {VALUES} from numbered group by who, n""",
}


@pytest.mark.parametrize("kind", BY_DUCKDB)
def test_batch_has_the_windows_of_duckdb(files: Files, kind: str) -> None:
    import duckdb
    import pyarrow as pa

    rows = [row for batch in shuffled(400, disorder_seconds=9)[:-1] for row in batch]
    files.write([rows])
    columns = [list(column) for column in zip(*rows, strict=True)]
    events = pa.table(columns, names=["who", "s", "amount"])
    result = duckdb.from_arrow(events).query("events", BY_DUCKDB[kind]).fetchall()
    expected = sorted((who or "", *values) for who, *values in result)
    found = [
        (who, seconds_of(start), seconds_of(end), *values)
        for who, start, end, *values in comparable(
            files.history().transform(KINDS[kind]()).collect()
        )
    ]
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine[0] == theirs[0]
        assert mine[1:] == pytest.approx(theirs[1:], abs=1e-5)


STRAGGLING: list[Batch] = [
    [("ann", 5, 1.0), ("ann", 65, 1.0), (None, 70, 1.0)],
    [("bob", 130, 1.0)],
    [("bob", 130, 1.0)],  # from here on the watermark is at 130
    [("ann", 50, 7.0), ("ann", 110, 7.0), ("ann", 125, 1.0), ("ann", None, 1.0)],
    [END],
]


def test_stragglers_are_dropped_and_counted_by_us_and_never_by_spark(files: Files) -> None:
    files.write(STRAGGLING)
    window = tumbling("1 minute", key="user", time="time", n="count(*)")
    run = files.run(files.stream("0 seconds").transform(window))
    found = {(row.user, seconds_of(row.window_end)): row.n for row in run.rows}
    found = {window: n for window, n in found.items() if window[0] != "end"}
    assert found == {
        ("ann", 60): 1,
        ("ann", 120): 1,
        (None, 120): 1,
        ("bob", 180): 2,
        ("ann", 180): 1,
    }
    assert run.dropped_by_us("late.tumbling 1 minute") == 3
    assert run.dropped_by_spark == 0


def test_hopping_rows_are_late_for_the_windows_that_are_closed_and_for_no_other(
    files: Files,
) -> None:
    files.write(STRAGGLING)
    window = hopping(
        "1 minute", "30 seconds", key="user", time="time", stragglers="divert", n="count(*)"
    )
    results = files.run(files.stream("0 seconds").transform(window))
    assert results.dropped_by_spark == 0
    ann = {seconds_of(row.window_end): row.n for row in results.rows if row.user == "ann"}
    assert ann == {30: 1, 60: 1, 90: 1, 120: 1, 150: 2, 180: 1}


def test_diverted_rows_have_all_columns_and_their_lateness(files: Files) -> None:
    files.write(STRAGGLING)
    window = hopping(
        "1 minute", "30 seconds", key="user", time="time", stragglers="divert", n="count(*)"
    )
    run = files.run(files.stream("0 seconds").transform(window.late))
    found = [
        (row.user, row.amount, row.window_end and seconds_of(row.window_end), row["_lateness"])
        for row in run.rows
    ]
    assert sorted(found, key=lambda it: it[2] or 0) == [
        ("ann", 1.0, None, None),
        ("ann", 7.0, 60, 80.0),
        ("ann", 7.0, 90, 80.0),
        ("ann", 7.0, 120, 20.0),
    ]
    assert "_watermark" not in run.rows[0]
    assert {row["_kind"] for row in run.rows} == {"late"}


def test_rows_of_sessions_are_late_after_the_gap(files: Files) -> None:
    files.write(STRAGGLING)
    window = session("30 seconds", key="user", time="time", stragglers="divert", n="count(*)")
    late = files.run(files.stream("0 seconds").transform(window.late)).rows
    assert sorted(row["_lateness"] or 0 for row in late) == [0, 80.0]


def test_stragglers_correct_what_was_final(files: Files) -> None:
    files.write(STRAGGLING)
    window = tumbling(
        "1 minute",
        key="user",
        time="time",
        stragglers="correct",
        allowed_lateness="50 seconds",
        n="count(*)",
        spent="sum(amount)",
    )
    run = files.run(files.stream("0 seconds").transform(window))
    ann = [
        (seconds_of(row.window_end), row["_kind"], row.n, row["_old"] and tuple(row["_old"]))
        for row in run.rows
        if row.user == "ann"
    ]
    assert sorted(ann) == [
        (60, "final", 1, None),
        (120, "correction", 2, (1, 1.0)),
        (120, "final", 1, None),
        (180, "final", 1, None),
    ], "the row at 50 came 80 s late, and 20 s too late"
    assert run.dropped_by_spark == 0


def test_rows_of_windows_that_are_no_longer_kept_are_counted_after_a_longer_lateness(
    files: Files,
) -> None:
    """Their windows were removed before the lateness was set. No other output has them."""

    def run(allowed: str, batches: list[Batch]) -> Run:
        files.write(batches)
        settings: dict[str, Any] = {"stragglers": "correct", "allowed_lateness": allowed}
        window = tumbling("1 minute", key="user", time="time", n="count(*)", **settings)
        return files.run(files.stream("0 seconds").transform(window))

    first = run("1 minute", [[("ann", 5, 1.0)], [("ann", 500, 1.0)], [("ann", 501, 1.0)]])
    expired = "late.tumbling 1 minute.expired"
    assert first.dropped_by_us(expired) == 0
    second = run("1 hour", [[("ann", 6, 1.0), ("ann", 7, 1.0), ("ann", 470, 1.0)]])
    assert second.dropped_by_us(expired) == 2
    assert [(it.user, seconds_of(it.window_start)) for it in second.rows] == [("ann", 420)]


def sessions_of(rows: list[Row]) -> list[tuple[Any, ...]]:
    """As a table with the user and the start as its key has them, withdrawn ones deleted."""
    table: dict[Any, Any] = {}
    for row in rows:
        place = (row.user or "", row.window_start)
        if row["_kind"] == "withdrawn":
            del table[place]
        elif row.user != "end":
            table[place] = (row.window_end, row.n, row.spent, row.mean, row.most)
    return sorted((*place, *values) for place, values in table.items())


SESSIONS: dict[str, dict[str, Any]] = {
    "changing": {"emit": "change"},
    "every": {"emit": "every 1 second", "allowed_lateness": "20 seconds"},
    "corrected": {"stragglers": "correct", "allowed_lateness": "10 minutes"},
}


@pytest.mark.parametrize("kind", SESSIONS)
def test_sessions_that_come_more_than_once_end_as_those_of_a_batch(files: Files, kind: str) -> None:
    files.write(shuffled(400, disorder_seconds=9))
    window = session("4 seconds", key="user", time="time", **SESSIONS[kind], **SPEC)
    expected = files.history().transform(window).collect()
    delay = "0 seconds" if kind == "corrected" else "10 seconds"
    run = files.run(files.stream(delay).transform(window))
    assert sessions_of(run.rows) == sessions_of(expected)
    assert expected
    assert run.dropped_by_spark == 0
    early = set() if kind == "corrected" else {"preliminary"}
    assert {row["_kind"] for row in run.rows} >= {"final"} | early


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_one_read_has_what_would_be_read_more_than_once(files: Files, kind: str) -> None:
    files.write(STRAGGLING)
    given: dict[str, Any] = {"key": "user", "time": "time", "stragglers": "divert", "n": "count(*)"}
    window = {"tumbling": tumbling, "session": session}[kind]("30 seconds", **given)
    run = files.run(files.stream("0 seconds").transform(window.with_late))
    sources = [source for it in run.progress for source in it.sources if it.numInputRows]
    assert len(sources) == len(STRAGGLING), "one source in each batch"
    assert sum(it.numInputRows for it in run.progress) == sum(map(len, STRAGGLING)), "read once"
    late = [row.late for row in run.rows if row.late is not None]
    results = [row.results for row in run.rows if row.results is not None]
    assert len(late) + len(results) == len(run.rows)
    assert sorted(row["_lateness"] or 0 for row in late)[1:] == (
        [20.0, 80.0] if kind == "tumbling" else [80.0]
    )
    assert {row["_kind"] for row in results} == {"final"}
    rows_of_all = sum(map(len, STRAGGLING))
    assert sum(row.n for row in results) == rows_of_all - len(late) - 1, "but for the last"
    history = files.history().transform(window.with_late).collect()
    count = files.history().transform(window).count()
    assert sum(row.results is not None for row in history) == count
    assert sum(row.late is not None for row in history) == 1, "without a time"


def every_kind(frame: DataFrame) -> dict[str, DataFrame]:
    """Each kind of window, with each policy that makes another plan of it, in one query."""
    by_user: dict[str, Any] = {"key": "user", "time": "time", "n": "count(*)"}
    corrected: dict[str, Any] = {"stragglers": "correct", "allowed_lateness": "1 minute"}
    windows = {
        "tumbling": tumbling("1 minute", **by_user),
        "waiting": tumbling("2 minutes", allowed_lateness="30 seconds", **by_user),
        "hopping": hopping("1 minute", "30 seconds", **by_user),
        "calendar": calendar("day", "Europe/Berlin", **by_user),
        "session": session("30 seconds", **by_user),
        "changing": hopping("1 minute", "20 seconds", emit="change", **by_user),
        "corrected": tumbling("1 minute", **corrected, **by_user),
        "sessions that change": session("20 seconds", emit="change", **by_user),
        "sessions corrected": session("30 seconds", **corrected, **by_user),
    }
    found = {name: frame.transform(window) for name, window in windows.items()}
    recent = sliding("30 seconds", allowed_lateness="30 seconds", **by_user)
    right = sliding("20 seconds", emit="final", **corrected, **by_user)
    return found | {"sliding": frame.transform(recent), "sliding corrected": frame.transform(right)}


def test_spark_drops_no_row_of_any_kind_and_the_counts_of_all_are_kept_apart(files: Files) -> None:
    from functools import reduce

    from pyspark.sql.functions import lit

    files.write(STRAGGLING)
    found = every_kind(files.stream("0 seconds"))
    branches = [it.select(lit(name).alias("of"), "user", "n") for name, it in found.items()]
    run = files.run(reduce(lambda one, two: one.unionAll(two), branches))
    assert run.dropped_by_spark == 0
    assert {row["of"] for row in run.rows if row.user == "ann"} == set(found)
    dropped = {name: run.dropped_by_us(name) for name in run.progress[0].observedMetrics}
    assert dropped == {
        "late.tumbling 1 minute": 3,
        "late.tumbling 2 minutes": 1,
        "late.hopping 1 minute by 30 seconds": 4,
        "late.hopping 1 minute by 20 seconds": 5,
        "late.calendar day in Europe/Berlin": 1,
        "late.session 30 seconds": 2,
        "late.session 20 seconds": 3,
        "late.sliding 30 seconds": 2,
        "late.tumbling 1 minute.expired": 0,
        "late.session 30 seconds.expired": 0,
    }


def test_bad_definitions_are_refused_with_the_fix() -> None:
    n: dict[str, Any] = {"n": "count(*)"}
    for make, message in (
        (lambda: tumbling("1 month", time="time", **n), "a month has no fixed length"),
        (
            lambda: tumbling("1 s", time="time", emit="change", p="percentile(value, 0.5)"),
            "p: there is no percentile in this window, only count, sum, avg, min, max",
        ),
        (lambda: tumbling("0 s", time="time", **n), "it must be longer than 0"),
        (lambda: hopping("1 minute", "2 minutes", time="time", **n), "slide is longer than size"),
        (lambda: hopping("1 day", "1 ms", time="time", **n), "use sliding, which"),
        (lambda: tumbling("1 minute", time="time"), "a window without aggregates"),
        (lambda: tumbling("1 minute", time="time", emit="often", **n), '"every 10 seconds"'),
        (
            lambda: tumbling("1 minute", time="time", emit="every blue moon", **n),
            "emit 'blue moon'",
        ),
        (lambda: tumbling("1 minute", time="time", stragglers="keep", **n), "drop, divert, corr"),
        (lambda: tumbling("1 minute", time="time", stragglers="correct", **n), "allowed_lateness="),
        (lambda: calendar("hour", "UTC", time="time", **n), "choose one of day, week"),
        (lambda: calendar("day", "Mars/Base", time="time", **n), 'like "Europe/Berlin"'),
        (lambda: session("1 s", time="time", stragglers="correct", **n), "allowed_lateness="),
    ):
        with pytest.raises(ConfigError) as refused:
            make()
        assert message in str(refused.value)


def test_frames_that_do_not_fit_are_refused_before_the_query_starts(spark: SparkSession) -> None:
    history = spark.createDataFrame([], COLUMNS + ", told string, ms long")
    endless = spark.readStream.format("rate").load()
    marked = endless.withWatermark("timestamp", "1 minute")
    with_column = marked.selectExpr("*", "cast(null as timestamp) as _watermark")
    n: dict[str, Any] = {"n": "count(*)"}
    for frame, window, message in (
        (history, tumbling("1 s", time="told", **n), "told is string: convert it with to_timest"),
        (history, tumbling("1 s", time="ms", **n), "timestamp_millis(ms)"),
        (history, tumbling("1 s", time="nowhere", **n), "there is no column 'nowhere': user"),
        (history, tumbling("1 s", time="time", key="me", **n), "there is no column 'me': user"),
        (history, tumbling("1 s", time="time", key="user", user="count(*)"), "a column user alr"),
        (
            history.withColumnRenamed("time", "window_end"),
            tumbling("1 s", time="window_end", **n),
            '.withColumnRenamed("window_end", ...)',
        ),
        (endless, tumbling("1 s", time="timestamp", **n), '.withWatermark("timestamp", "1 minute'),
        (
            marked,
            tumbling("1 s", time="timestamp", **n),
            "a stream needs the column _watermark to find late rows",
        ),
        (
            with_column.selectExpr("*", "string(value) as text"),
            tumbling("1 s", time="timestamp", emit="change", s="sum(text)"),
            "s: there is no sum of string",
        ),
    ):
        with pytest.raises(ConfigError) as refused:
            frame.transform(window)
        assert message in str(refused.value)


def test_same_window_twice_gives_its_rows_twice(files: Files) -> None:
    """Spark would reuse the input of the first for the second, without its watermark."""
    from pyspark.sql.functions import lit

    files.write(STRAGGLING)
    window = sliding("20 seconds", key="user", time="time", emit="final", n="count(*)")
    rows = files.stream("0 seconds").transform(window)
    one, two = (rows.select(lit(it).alias("of"), "n") for it in "ab")
    found = [(row.of, row.n) for row in files.run(one.unionAll(two)).rows]
    assert sorted(n for of, n in found if of == "a") == sorted(n for of, n in found if of == "b")
    assert found
