"""The main module of a worker's process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from millstream.broker.workers.worker import Assignment
from millstream.config.broker import Endpoint
from millstream.storage.filesystem import OsFileSystem

COMMAND = (sys.executable, "-m", "millstream.broker.workers.worker")


def assignment(path: Path) -> Assignment:
    return Assignment(
        1,
        {"log.dirs": str(path / "1"), "node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0"},
        str(path / "cluster"),
        str(path / "1.lock"),
        [Endpoint("PLAINTEXT", "127.0.0.1", 0)],
    )


def test_assignment_is_read_back(tmp_path: Path) -> None:
    given = assignment(tmp_path)
    assert Assignment.decode(given.encode().decode()) == given


def test_process_without_an_assignment_ends() -> None:
    assert subprocess.run(COMMAND, stdin=subprocess.DEVNULL, check=True).returncode == 0


def run(given: Assignment) -> tuple[int, str]:
    """The exit code and the error of a worker that does not start. Its parent stays."""
    process = subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(given.encode())
    process.stdin.flush()
    error: str = json.loads(process.stdout.readline())["error"]
    code = process.wait()
    process.communicate()
    return code, error


def test_worker_that_runs_already_is_not_started_again(tmp_path: Path) -> None:
    presence = OsFileSystem().lock(str(tmp_path / "1.lock"))
    code, error = run(assignment(tmp_path))
    OsFileSystem().close(presence)
    assert code == 1
    assert "another process is worker 1" in error


def test_worker_without_a_cluster_says_why_it_ends(tmp_path: Path) -> None:
    code, error = run(assignment(tmp_path))
    assert code == 1
    assert "not the directory of a cluster of workers" in error
