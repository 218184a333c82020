"""Pipelines on Spark: reading and writing topics, and everything else that imports pyspark.

    from millstream.pipelines import pipeline, table, topic, view
    from millstream.pipelines import analytics, joins, patterns, times, views, windows

Importing this package before a Spark session is made has its workers run this Python
(interpreter.py). A Kafka cluster is reached over the wire, Millstream's or Apache's alike. Use what
these packages export; their modules are private.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.pipelines.interpreter import register, use_this_python
from millstream.pipelines.pipeline import Pipeline, pipeline
from millstream.pipelines.spec import table, topic, view

if TYPE_CHECKING:
    from millstream.pipelines.running.session import spark_settings

__all__ = ["Pipeline", "pipeline", "register", "spark_settings", "table", "topic", "view"]

use_this_python()  # before a session starts its JVM


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562): a declaration must not wait for what starts sessions."""
    if name == "spark_settings":
        from millstream.pipelines.running.session import spark_settings

        return spark_settings
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
