"""Workers that settle."""

from __future__ import annotations

import gc
import platform
from collections.abc import Iterator

import pytest

from millstream.pipelines import workers


@pytest.fixture(autouse=True)
def thaw() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_settle_hides_what_there_is_from_the_collector_once_per_work() -> None:
    workers.settle("test one")
    hidden = gc.get_freeze_count()
    assert hidden > 1000
    later = [[] for _ in range(100)]  # type: ignore[var-annotated]
    workers.settle("test one")
    assert gc.get_freeze_count() <= hidden
    workers.settle("test two")
    assert gc.get_freeze_count() >= hidden + len(later) / 2


def test_keep_memory_is_understood_by_glibc() -> None:
    assert workers.keep_memory() == (platform.libc_ver()[0] == "glibc")
