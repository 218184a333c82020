"""Pipelines on Spark: reading and writing topics, and everything else that imports pyspark.

    from millstream.pipelines import pipeline, table, topic
    from millstream.pipelines import analytics, joins, times, windows

A Kafka cluster is reached over the wire, Millstream's or Apache's alike. Use what these packages
export; their modules are private.
"""

from millstream.pipelines.pipeline import Pipeline, pipeline
from millstream.pipelines.spec import table, topic

__all__ = ["Pipeline", "pipeline", "table", "topic"]
