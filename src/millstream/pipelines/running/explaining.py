"""Explaining a pipeline without running it: its graph (`plan_steps`), in a session of Spark's.

It needs declared schemas, and asks no broker. As at the start of a query, Spark's check for
unsupported operations applies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from millstream.pipelines.plans import analyzed
from millstream.pipelines.running.launching import apply_to_streams
from millstream.pipelines.running.output_modes import choose_output_mode
from millstream.pipelines.running.outputs import combine
from millstream.pipelines.running.plan_steps import Explanation, explain_frames
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.spec import PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOBODY = "127.0.0.1:9092"  # options must name a broker; it is not asked


def explain(pipeline: PipelineSpec, spark: SparkSession, settings: Settings) -> Explanation:
    """Raises `ConfigError`, or Spark's error, for a pipeline that would not start."""
    if settings.is_embedded:
        settings = replace(settings, broker=NOBODY)
    made = apply_to_streams(pipeline, spark, settings, {})
    result = combine(pipeline, made)
    mode = choose_output_mode(pipeline, made)
    check_supported(spark, result, mode)
    return explain_frames(pipeline, spark, made, result, mode)


def check_supported(spark: SparkSession, result: DataFrame, mode: str) -> None:
    """Raise the error that Spark would raise at the start of the query."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors.exceptions.captured import convert_exception

    jvm: Any = spark._jvm
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    output_mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[mode]
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(analyzed(result), output_mode())
    except Py4JJavaError as error:
        raise convert_exception(error.java_exception) from None
