"""Pipelines on Spark: reading and writing topics, and everything else that imports pyspark.

    from millstream.pipelines import pipeline, table, topic

A Kafka cluster is reached over the wire, Millstream's or Apache's alike.
"""

from millstream.pipelines.pipeline import Pipeline, pipeline
from millstream.pipelines.spec import table, topic

__all__ = ["Pipeline", "pipeline", "table", "topic"]
