"""What Spark plans for a frame: which operators work on its stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.columns import WATERMARK_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

AGGREGATE = "Aggregate"
WATERMARK = "EventTimeWatermark"


def analyzed(frame: DataFrame) -> Any:
    """The plan of a frame as Spark has understood it, a Java object."""
    return frame._jdf.queryExecution().analyzed()


def streaming_operators(plan: Any) -> set[str]:
    """The names of all operators of a plan that work on a stream."""
    found = set()
    if plan.isStreaming():
        found.add(str(plan.nodeName()))
        children = plan.children()
        for index in range(children.size()):
            found |= streaming_operators(children.apply(index))
    return found


def check_not_aggregated(*frames: DataFrame) -> None:
    """Raises `ConfigError` if a stream has been aggregated before it comes to state in buckets.

    What an aggregation gives is at or behind the watermark when it comes, since that is what it
    waited for. State in buckets tells late rows by that same watermark, and would drop results of
    windows whenever it leaps.
    """
    for frame in frames:
        if frame.isStreaming and AGGREGATE in streaming_operators(analyzed(frame)):
            raise ConfigError(
                "this keeps state in buckets, and its input is an aggregate of a stream, whose "
                "rows are behind the watermark when they come and would be taken for late ones: "
                "write the aggregate into a topic, and read that in another pipeline"
            )


def check_comparisons(frame: DataFrame) -> None:
    """Raises `ConfigError` if whole rows of a stream are compared, with the watermark in them."""
    if frame.isStreaming and _compares_watermarks(analyzed(frame)):
        raise ConfigError(
            f"distinct() and dropDuplicates() compare all columns, and {WATERMARK_COLUMN} differs "
            'between batches: name the columns, dropDuplicates(["id"]), or '
            f'frame.drop("{WATERMARK_COLUMN}") before'
        )


def _compares_watermarks(plan: Any) -> bool:
    name = str(plan.nodeName())
    if name in ("Deduplicate", "DeduplicateWithinWatermark", "Distinct"):
        compared = plan.output() if name == "Distinct" else plan.keys()
        names = {str(compared.apply(index).name()) for index in range(compared.size())}
        if WATERMARK_COLUMN in names:
            return True
    children = plan.children()
    return any(_compares_watermarks(children.apply(index)) for index in range(children.size()))
