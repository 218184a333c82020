"""Objects that the garbage collector skips, and memory that is kept."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from millstream.pipelines import workers


@pytest.fixture(autouse=True)
def thaw() -> Iterator[None]:
    gc.unfreeze()
    yield
    gc.unfreeze()


def is_seen(thing: object) -> bool:
    """Whether the collector traverses it, which is not the case if it is frozen."""
    return any(it is thing for it in gc.get_objects())


def test_objects_are_frozen_once_per_kind_of_work() -> None:
    before: list[object] = []
    workers.freeze_imports("test one")
    assert not is_seen(before)
    later: list[object] = []
    workers.freeze_imports("test one")
    assert is_seen(later)
    workers.freeze_imports("test two")
    assert not is_seen(later)


def test_objects_that_outlive_the_task_are_frozen_when_they_are_built() -> None:
    with workers.frozen():
        assert not gc.isenabled()
        built: list[object] = []
    assert gc.isenabled()
    assert not is_seen(built)


def test_keep_memory_is_understood_by_glibc() -> None:
    assert workers.keep_memory() == (platform.libc_ver()[0] == "glibc")


DRAWN = """
import os
from millstream.pipelines.workers import preload

preload("numpy.random")
import numpy as np

for _ in range(2):
    if os.fork() == 0:
        os.write(1, b"%d\\n" % np.random.randint(2**62))
        os._exit(0)
    os.wait()
"""


def test_forked_workers_draw_different_numbers() -> None:
    pytest.importorskip("numpy")
    ended = subprocess.run([sys.executable, "-c", DRAWN], capture_output=True, check=True)
    one, other = ended.stdout.split()
    assert one != other
