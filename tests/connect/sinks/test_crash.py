"""A runner that is killed between any two of its steps leaves the target whole, and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.connect.sinks.conftest import KINDS, Derived, Log, delete_row, set_row

STEPS_MAX = 400
STATEMENTS = ("sqlite", "fts5", "postgresql", "redis", "duckdb")  # each is a step
# One kind runs always: the steps of the runner are the same for all.
WITH_SLOW = [it if it == "sqlite" else pytest.param(it, marks=pytest.mark.slow) for it in KINDS]


@pytest.mark.parametrize("derived", WITH_SLOW, indirect=True)
@pytest.mark.timeout(600)
def test_killed_runner_applies_every_record_once(
    derived: Derived, log: Log, tmp_path: Path
) -> None:
    """Each run gets further than the one before, until one gets to the end."""
    log.put((1, "one"), (2, "two"))
    log.send(set_row(3, "three"), delete_row(1))
    path = tmp_path / "config.json"
    topic = {"table": "items", "key": "id", **derived.topic_options}
    given = {
        "name": "shop",
        "broker": log.bootstrap,
        "to": derived.to,
        "topics": {log.topic: topic},
    }
    path.write_text(json.dumps(given))
    command = [sys.executable, "-m", "tests.connect.sinks.crashing", str(path)]
    expected = {2: "two", 3: "three"}
    killed = 0
    # Of the others only fetches and writes are steps: these few are all tried.
    for fatal in range(1, STEPS_MAX, 7 if derived.to.startswith(STATEMENTS) else 1):
        code = subprocess.run([*command, str(fatal)], check=False, capture_output=True).returncode
        if code == 0:
            break
        assert code == -9
        killed += 1
        log.send(set_row(10 + killed, f"v{killed}"), delete_row(10 + killed - 1))
        expected.pop(10 + killed - 1, None)
        expected[10 + killed] = f"v{killed}"
    assert killed > 2
    subprocess.run([*command, "0"], check=True)
    assert derived.rows() == expected
