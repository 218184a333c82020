"""The bounds of interval joins, and what is refused; the join itself is Spark's."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.joins import interval_join
from millstream.pipelines.joins.interval import Band, reach_us

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MINUTE_US = 60_000_000


@pytest.mark.parametrize(
    ("band", "expected"),
    [
        ("10 minutes", (10 * MINUTE_US, 10 * MINUTE_US)),
        (timedelta(minutes=1), (MINUTE_US, MINUTE_US)),
        (("0 seconds", "10 minutes"), (0, 10 * MINUTE_US)),
        (("1 minute", "0 seconds"), (MINUTE_US, 0)),
    ],
)
def test_bound_applies_in_both_directions_by_default(band: Band, expected: tuple[int, int]) -> None:
    assert reach_us(band, "full", unbounded=False) == expected


def test_join_without_a_bound_is_refused_unless_said() -> None:
    with pytest.raises(ConfigError, match='band="10 minutes"'):
        reach_us(None, "inner", unbounded=False)
    assert reach_us(None, "inner", unbounded=True) is None


def test_outer_join_without_a_bound_is_refused() -> None:
    with pytest.raises(ConfigError, match="a match may always arrive later"):
        reach_us(None, "left", unbounded=True)


def test_bound_that_is_none_and_given_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave out"):
        reach_us("1 minute", "inner", unbounded=True)


def test_bound_that_is_no_duration_is_refused() -> None:
    with pytest.raises(ConfigError, match="band 'soon'"):
        reach_us(("soon", "1 minute"), "inner", unbounded=False)


def test_times_without_a_zone_are_joined_only_where_the_session_is_in_utc(
    spark: SparkSession,
) -> None:
    """Elsewhere the watermark of a stream would be hours beside the times that are compared."""
    rows = spark.sql("select 1 as id, timestamp_ntz'2026-03-29 12:00:00' as at")
    others = spark.sql("select 1 as id, timestamp_ntz'2026-03-29 12:05:00' as bought_at")

    def join(minutes: int) -> int:
        within = timedelta(minutes=minutes)
        pairs = interval_join(rows, others, "id", time="at", right_time="bought_at", band=within)
        return pairs.count()

    assert (join(4), join(5)) == (0, 1)
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        with pytest.raises(ConfigError, match=r"session is in Europe/Berlin.*timeZone to UTC, or"):
            join(5)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
