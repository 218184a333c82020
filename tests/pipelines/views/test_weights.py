"""The input of an operator of views: with weights, whatever it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.joins.weights import WEIGHT
from millstream.pipelines.views.weights import with_weights

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_rows_without_weights_are_added(spark: SparkSession) -> None:
    rows = with_weights(spark.sql("SELECT 1 AS id"), 4).collect()
    assert [row.asDict() for row in rows] == [{"id": 1, WEIGHT: 1}]


def test_weights_are_kept_as_the_last_column(spark: SparkSession) -> None:
    frame = spark.sql("SELECT -1L AS _weight, 1 AS id, 'delete' AS _op")
    assert with_weights(frame, 4).columns == ["id", WEIGHT]


def test_rows_that_cannot_be_compared_are_refused(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match="cannot be compared"):
        with_weights(spark.sql("SELECT map(1, 2) AS m"), 4)
