"""Spark as it is installed: its Java, and a light home of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.pipelines.running.javas import find_java
from millstream.pipelines.running.spark_home import linked_home


@pytest.fixture(scope="module")
def java() -> Path:
    found = find_java()
    assert found is not None
    return found.resolve()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linked_home(tmp_path_factory.mktemp("home"))
