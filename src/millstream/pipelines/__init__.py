"""Pipelines on Spark: reading and writing topics, and everything else that imports pyspark.

    from millstream.pipelines import pipeline, table, topic, view
    from millstream.pipelines import analytics, joins, patterns, times, views, windows

Importing this package before a Spark session is made has its workers run this Python
(interpreter.py). A Kafka cluster is reached over the wire, Millstream's or Apache's alike. Use what
these packages export; their modules are private.
"""

from millstream.pipelines.interpreter import register, use_this_python
from millstream.pipelines.pipeline import Pipeline, pipeline
from millstream.pipelines.spec import table, topic, view

__all__ = ["Pipeline", "pipeline", "register", "table", "topic", "view"]

use_this_python()  # before a session starts its JVM
