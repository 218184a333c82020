"""The fixture of this room's tests on Spark."""

from tests.pipelines.analytics.events import stage

__all__ = ["stage"]
