"""Several outputs of one pipeline, as one DataFrame: a struct column for each.

A row of the pipeline is a row of every output whose column is not null. One DataFrame is one sink
call on one read of the source; branches of a stream would read it once each. A function may return
such a DataFrame, which is fastest, or a DataFrame for each output by name, which are united here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.columns import WATERMARK_COLUMN, as_column
from millstream.pipelines.plans import check_comparisons
from millstream.pipelines.spec import ONLY, PipelineSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DUPLICATED_COUNT = "DUPLICATED_METRICS_NAME"


def combine(pipeline: PipelineSpec, result: Any) -> DataFrame:
    """The result of the function as one DataFrame; raises `ConfigError`."""
    frames = result.values() if isinstance(result, Mapping) else [result]
    for frame in frames:
        if not hasattr(frame, "isStreaming"):
            raise ConfigError(
                f"{pipeline.name} returns {type(frame).__name__}, and should return a DataFrame"
            )
        check_comparisons(frame)
    combined: DataFrame
    if list(pipeline.writes) == [ONLY]:
        if isinstance(result, Mapping):
            raise ConfigError(
                f"{pipeline.name} returns several DataFrames and declares one output: "
                'writes={"name": table(...), "other": topic(...)}'
            )
        combined = without_watermark(result)
    elif isinstance(result, Mapping):
        shown = {name: without_watermark(it) for name, it in result.items()}
        with explained_counts(pipeline):
            combined = unite(pipeline, shown)
    else:
        combined = without_watermark(checked(pipeline, result))
    if not combined.isStreaming:
        raise ConfigError(
            f"what {pipeline.name} returns is not a stream: it does not depend on its inputs"
        )
    return combined


@contextmanager
def explained_counts(pipeline: PipelineSpec) -> Iterator[None]:
    """Spark's refusal of two counts with one name, as a `ConfigError` with what to do."""
    try:
        yield
    except Exception as error:
        if DUPLICATED_COUNT not in str(error):
            raise
        raise ConfigError(
            f"{pipeline.name}: two operators count late rows or duplicates under one name, "
            f'{_name_in(str(error))}: give one of them another, count_as="late.second"'
        ) from error


def _name_in(message: str) -> str:
    """The name of the count in Spark's message."""
    found = re.search(r"not unique: (.*?)\. ", message)
    return message if found is None else found[1]


def without_watermark(frame: DataFrame) -> DataFrame:
    """The frame without the column that the reader adds, also in its structs."""
    inner = {
        field.name: as_column(field.name).dropFields(WATERMARK_COLUMN)
        for field in frame.schema
        if WATERMARK_COLUMN in getattr(field.dataType, "names", ())
    }
    frame = frame.withColumns(inner) if inner else frame
    return frame.drop(WATERMARK_COLUMN) if WATERMARK_COLUMN in frame.columns else frame


def unite(pipeline: PipelineSpec, frames: Mapping[str, DataFrame]) -> DataFrame:
    from pyspark.sql.functions import col, lit, struct

    if frames.keys() != pipeline.writes.keys():
        raise ConfigError(
            f"{pipeline.name} returns {', '.join(frames)}, and its outputs are "
            f"{', '.join(pipeline.writes)}"
        )
    tagged = [
        frame.select(
            *(
                struct(*(col(f"`{column}`") for column in frame.columns)).alias(name)
                if name == other
                else lit(None).cast(frames[other].schema).alias(other)
                for other in pipeline.writes
            )
        )
        for name, frame in frames.items()
    ]
    return reduce(lambda one, two: one.unionByName(two), tagged)


def checked(pipeline: PipelineSpec, frame: DataFrame) -> DataFrame:
    kinds = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    wanted = dict.fromkeys(pipeline.writes, "struct")
    if kinds != wanted:
        raise ConfigError(
            f"{pipeline.name} has several outputs and returns columns {', '.join(kinds)}: it "
            f"should return a struct column for each of {', '.join(wanted)}, or a DataFrame for "
            "each, by name"
        )
    return frame


def rows_of(frame: DataFrame, name: str) -> DataFrame:
    """One output's rows."""
    return frame.where(f"`{name}` is not null").select(f"`{name}`.*")
