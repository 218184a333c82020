"""What the guides' pictures show is what the library does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tools.pictures.results import compute, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.timeout(600)
def test_pictures_show_what_the_library_computes(spark: SparkSession) -> None:
    assert compute(spark) == load()
