"""The Spark session of the tests of pipelines, and inputs that need none."""

from __future__ import annotations

from tests.pipelines.conftest import spark

__all__ = ["spark"]
