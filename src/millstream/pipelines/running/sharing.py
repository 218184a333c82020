"""One read of each topic, however often a pipeline's function uses it.

Spark reads a source once for every place that it has in the plan: a pipeline with two outputs would
fetch and decode its records twice, and write two dead letters for a bad one. Only an exchange is
computed once, if it is the same everywhere. So the rows of an input that is used several times go
through an exchange, which keeps the rows of each task together and in order.

The optimizer would make these exchanges different: it moves the filters of each use, and its choice
of columns, in front of it. Hence all columns are packed into a struct behind the exchange, in an
expression that is not deterministic, which the optimizer leaves where it is.

No exchange further up may be shared: Spark looks for an operator's watermark in the plan below it,
and there is none below a reused exchange. The operator would then keep late rows, and its timers
would never fire. The expression prevents that, too: it is random, and in a stream Spark gives it a
seed of its own wherever it is used, so that what is above it differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.pipelines.plans import analyzed, leaves

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

INPUT_OPTION = "pipelineInput"  # the parameter that a source is read for
SOURCE_NODE = "StreamingRelationV2"


def share(frame: DataFrame) -> DataFrame:
    """The same rows, which Spark computes once however often they are used."""
    from pyspark.sql.functions import array, coalesce, col, shuffle, spark_partition_id, struct

    tasks = frame.sparkSession.sparkContext.defaultParallelism
    exchanged = frame.repartitionById(tasks, spark_partition_id())
    row = struct(*(col(f"`{name}`") for name in frame.columns))
    # An element of an array can be null, a row cannot.
    packed = coalesce(shuffle(array(row))[0], row)
    return exchanged.select(packed.alias("row")).select("row.*")


def repeated_inputs(result: DataFrame | Mapping[str, DataFrame]) -> set[str]:
    """The inputs, by parameter, that a pipeline's result uses more than once."""
    frames = result.values() if isinstance(result, Mapping) else [result]
    used = Counter(name for frame in frames for name in inputs_of(frame))
    return {name for name, count in used.items() if count > 1}


def inputs_of(frame: Any) -> list[str]:
    """The parameters of the inputs that a frame is made of, in the order of its plan."""
    if not hasattr(frame, "isStreaming") or not frame.isStreaming:
        return []
    sources = [it for it in leaves(analyzed(frame)) if it.nodeName() == SOURCE_NODE]
    return [str(it.extraOptions().get(INPUT_OPTION)) for it in sources]
