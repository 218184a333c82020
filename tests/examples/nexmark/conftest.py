"""The Spark session of the tests of pipelines, here too."""

from tests.pipelines.conftest import spark

__all__ = ["spark"]
