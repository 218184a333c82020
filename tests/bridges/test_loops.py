"""Work that fails begins again, and is seen."""

from __future__ import annotations

import threading
import time

import pytest

from millstream.bridges import loops
from millstream.bridges.counts import Counts
from millstream.bridges.loops import Loop

PATIENCE_SECONDS = 60.0


def test_work_begins_again_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "PAUSE_SECONDS", 0.01)
    stopping, counts, is_working = threading.Event(), Counts(), threading.Event()
    tries: list[str | None] = []

    def work() -> None:
        tries.append(loop.problem)
        if len(tries) < 3:
            raise OSError("the network is down")
        is_working.set()
        stopping.wait(PATIENCE_SECONDS)

    loop = Loop("mold a", work, stopping, counts)
    assert loop.problem is None
    loop.start()
    assert is_working.wait(PATIENCE_SECONDS)
    assert tries == [None, *["mold a: OSError: the network is down"] * 2]
    assert counts.of("failures", part="mold a") == 2
    monkeypatch.setattr(loops, "HEALTHY_SECONDS", -1.0)
    assert loop.problem is None
    stopping.set()
    loop.join()


def test_work_that_returns_is_over_and_pauses_end_when_stopped() -> None:
    stopping, counts = threading.Event(), Counts()
    done = Loop("a", lambda: None, stopping, counts)
    done.start()
    done.join()
    assert done.problem is None

    def fail() -> None:
        raise ValueError("no")

    failing = Loop("b", fail, stopping, counts)
    failing.start()
    until = time.monotonic() + PATIENCE_SECONDS
    while failing.problem is None:
        assert time.monotonic() < until
        time.sleep(0.001)
    stopping.set()
    failing.join()
