"""A runner that is killed between any two of its steps leaves the target whole, and goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.connect.sinks.conftest import KINDS, DeltaTables, Derived, Log, delete_row, set_row

STEPS_MAX = 400
CHANGES_MAX = 50  # a run of Delta changes more files the more runs were killed before it
# A run has many statements, some requests, and few fetches and writes: so often it is killed.
STRIDES = {"delta": 1, "parquet": 1, "opensearch": 3, "redis": 3}
# One kind runs always: the steps of the runner are the same for all.
WITH_SLOW = [it if it == "sqlite" else pytest.param(it, marks=pytest.mark.slow) for it in KINDS]


def follow_with_kills(
    derived: Derived, log: Log, directory: Path, run: Callable[[Path, int], int], steps: range
) -> int:
    """Each run gets further than the one before, until one gets to the end or is the last. Returns
    the number of runs that were killed."""
    log.put((1, "one"), (2, "two"))
    log.send(set_row(3, "three"), delete_row(1))
    path = directory / "config.json"
    topic = {"table": "items", "key": "id", **derived.topic_options}
    base = {"name": "shop", "broker": log.bootstrap, "to": derived.to, "pause_seconds": 0}
    path.write_text(json.dumps({**base, "topics": {log.topic: topic}}))
    expected = {2: "two", 3: "three"}
    killed = 0
    for fatal in steps:
        code = run(path, fatal)
        if code == 0:
            break
        assert code == -9
        killed += 1
        log.send(set_row(10 + killed, f"v{killed}"), delete_row(10 + killed - 1))
        expected.pop(10 + killed - 1, None)
        expected[10 + killed] = f"v{killed}"
    assert run(path, 0) == 0
    assert derived.rows() == expected
    return killed


def run_sink(path: Path, fatal: int, environment: Mapping[str, str] | None = None) -> int:
    command = [sys.executable, "-m", "tests.connect.sinks.crashing", str(path), str(fatal)]
    given = None if environment is None else os.environ | environment
    return subprocess.run(command, check=False, capture_output=True, env=given).returncode


@pytest.mark.parametrize("derived", WITH_SLOW, indirect=True)
@pytest.mark.timeout(600)
def test_killed_runner_applies_every_record_once(
    derived: Derived, log: Log, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    stride = STRIDES.get(request.node.callspec.params["derived"], 7)
    steps = range(1, STEPS_MAX, stride)
    assert follow_with_kills(derived, log, tmp_path, run_sink, steps) > 2


@pytest.mark.slow
@pytest.mark.parametrize("derived", ["delta", "parquet"], indirect=True)
@pytest.mark.timeout(600)
def test_runner_killed_at_every_change_of_a_file_applies_every_record_once(
    derived: DeltaTables, log: Log, tmp_path: Path
) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = Path(__file__).with_name("killing.c"), tmp_path / "killing.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    counted = {"LD_PRELOAD": str(library), "KILL_BELOW": str(derived.path)}

    def run(path: Path, fatal: int) -> int:
        return run_sink(path, 0, {**counted, "KILL_AT": str(fatal)})

    assert follow_with_kills(derived, log, tmp_path, run, range(1, CHANGES_MAX)) > 5
