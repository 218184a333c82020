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


def is_seen(thing: object) -> bool:
    """Whether the collector looks at it; what is frozen it does not."""
    return any(it is thing for it in gc.get_objects())


def test_settle_hides_what_there_is_from_the_collector_once_per_work() -> None:
    before: list[object] = []
    workers.settle("test one")
    assert not is_seen(before)
    later: list[object] = []
    workers.settle("test one")
    assert is_seen(later)
    workers.settle("test two")
    assert not is_seen(later)


def test_keep_memory_is_understood_by_glibc() -> None:
    assert workers.keep_memory() == (platform.libc_ver()[0] == "glibc")
