"""Halting versions at a cut: operators that ask, versions that answer, leases that expire."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.reading.cuts import Cut, read_cut
from millstream.pipelines.versions import halting
from millstream.pipelines.versions.catalog import open_catalog
from millstream.pipelines.versions.halting import (
    LEASE_SECONDS,
    HaltedElsewhere,
    HaltWatch,
    Operator,
    Seen,
    choose_cut,
    halted,
    is_at,
    is_past,
    watermark_ms,
)
from millstream.pipelines.versions.registry import identity_of
from tests.peers.patience import PATIENCE_SECONDS
from tests.pipelines.versions.conftest import Scene

A, B, C = ("a", 0), ("b", 0), ("a", 1)
CUT = {("orders", 0): 10}


def test_positions_are_compared_in_topics_that_both_have() -> None:
    assert is_at({A: 3}, {A: 3, B: 9})
    assert is_at({A: 3}, {A: 3, C: 0})
    assert not is_at({A: 3}, {A: 3, C: 1})
    assert is_past({A: 4}, {A: 3, B: 9})
    assert not is_past({A: 3}, {A: 3})


def test_cut_is_the_end_of_the_topics_if_all_versions_run() -> None:
    positions = {"1": {A: 5}, "2": {A: 3}}
    assert choose_cut(positions, {"1": True, "2": True}, {A: 9}) == {A: 9}


def test_cut_is_where_a_version_stands_that_does_not_run() -> None:
    positions = {"1": {A: 5}, "2": {A: 3}}
    assert choose_cut(positions, {"1": False, "2": True}, {A: 9}) == {A: 5}
    with pytest.raises(ConfigError, match="version 2 does not run and stands 2 records behind"):
        choose_cut(positions, {"1": True, "2": False}, {A: 9})
    with pytest.raises(ConfigError, match="do not run, and stand at different offsets"):
        choose_cut(positions, {"1": False, "2": False}, {A: 9})


def test_watermark_of_a_query_is_read_from_its_progress() -> None:
    assert watermark_ms({"eventTime": {"watermark": "1970-01-01T00:00:01.500Z"}}) == 1500
    assert watermark_ms({"eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}}) is None
    assert watermark_ms({}) is None


@contextmanager
def watched(scene: Scene, version: str, file: Path, seen: Seen) -> Iterator[None]:
    """A version that runs: a thread that answers, as `launch` starts it."""
    ended, gone = threading.Event(), threading.Event()

    def look() -> Seen | None:
        if ended.is_set():
            gone.set()
            return None
        return seen

    HaltWatch(scene.database.url, "revenue", version, file, look, rest_seconds=0.0).start()
    query = identity_of("revenue", version)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while scene.catalog.read(lambda work: halting.read_answer(work, query)) is None:
        assert time.monotonic() < deadline, "it does not answer"
        time.sleep(0.05)
    try:
        yield
    finally:
        ended.set()
        assert gone.wait(60)


def test_running_versions_halt_at_the_ends_and_go_on(scene: Scene, tmp_path: Path) -> None:
    idle = Seen(0, True, 0, 1500)
    files = {it: tmp_path / f"{it}.json" for it in ("1", "2")}
    for version in files:
        scene.deploy(version)
        scene.write(version, 0, 10, [("monday", 1.0)])
    with (
        watched(scene, "1", files["1"], idle),
        watched(scene, "2", files["2"], idle),
    ):
        operator = Operator(scene.catalog, "revenue", ("1", "2"), seconds_max=60)
        with halted(operator, lambda: CUT) as cut:
            assert cut == CUT
            assert [read_cut(it) for it in files.values()] == [Cut(CUT), Cut(CUT)]
            with operator.renewing(cut):
                pass
        assert scene.catalog.read(lambda work: halting.read_halt(work, "revenue")) is None
    assert all(it.is_caught_up for it in scene.document().versions.values())


def test_versions_that_do_not_run_stand_where_they_are(scene: Scene) -> None:
    for version in ("1", "2"):
        scene.deploy(version)
        scene.write(version, 0, 10, [("monday", 1.0)])
    with halted(Operator(scene.catalog, "revenue", ("1", "2")), dict) as cut:
        assert cut == CUT


def test_version_that_has_written_nothing_is_refused(scene: Scene) -> None:
    scene.deploy("1")
    operator = Operator(scene.catalog, "revenue", ("1",))
    with (
        pytest.raises(ConfigError, match="version 1 of revenue has written nothing"),
        halted(operator, dict),
    ):
        pass
    assert scene.catalog.read(lambda work: halting.read_halt(work, "revenue")) is None


def test_second_operator_waits_only_for_one_that_lives(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("1", "2"):
        scene.deploy(version)
        scene.write(version, 0, 10, [("monday", 1.0)])
    monkeypatch.setattr(halting, "LEASE_SECONDS", 2.0)
    dead = Operator(scene.catalog, "revenue", ("1", "2"))
    dead.halt(dict)  # and never released
    with halted(Operator(scene.catalog, "revenue", ("1", "2")), dict) as cut:
        assert cut == CUT
        with open_catalog(scene.database.url) as other, pytest.raises(HaltedElsewhere):
            dead._write_renewal(other, CUT)


def test_halt_of_a_dead_operator_expires(scene: Scene, tmp_path: Path) -> None:
    scene.deploy("1")
    now = [0.0]
    file = tmp_path / "halt.json"
    watch = HaltWatch(scene.database.url, "revenue", "1", file, lambda: None, clock=lambda: now[0])
    scene.write("1", 0, 10, [("monday", 1.0)])
    Operator(scene.catalog, "revenue", ("1",)).halt(dict)
    seen = Seen(0, True, None, None)
    watch.step(scene.catalog, seen)
    assert read_cut(file) == Cut(CUT)
    now[0] = LEASE_SECONDS + 1
    watch.step(scene.catalog, seen)
    assert read_cut(file) is None
