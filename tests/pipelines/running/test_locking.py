"""Locks of checkpoints, between real processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.running import locking
from millstream.pipelines.running.locking import locked
from tests.peers.patience import PATIENCE_SECONDS

HOLDER = """
import sys
from millstream.pipelines.running.locking import locked
with locked(sys.argv[1]):
    print("locked", flush=True)
    sys.stdin.read()
"""

needs_strace = pytest.mark.skipif(
    shutil.which("strace") is None, reason="`strace` is not installed: `apt-get install strace`"
)


class Query:
    """A streaming query, as far as a lock looks at it."""

    def __init__(self) -> None:
        self._ended = threading.Event()

    @property
    def isActive(self) -> bool:  # noqa: N802 Spark's name
        return not self._ended.is_set()

    def awaitTermination(self) -> None:  # noqa: N802 Spark's name
        self._ended.wait()
        raise RuntimeError("it has failed")

    def end(self) -> None:
        self._ended.set()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.communicate()


def test_checkpoint_is_locked_by_one_process_at_a_time(
    other: subprocess.Popen[str], tmp_path: Path
) -> None:
    for location in (str(tmp_path), f"file://{tmp_path}"):
        with (
            pytest.raises(ConfigError, match=f"process {other.pid} runs a query on the checkpoint"),
            locked(location),
        ):
            pass
    other.kill()  # with SIGKILL
    other.wait()
    with locked(str(tmp_path)):
        pass


def test_checkpoint_stays_locked_until_its_query_has_ended(tmp_path: Path) -> None:
    query: Any = Query()
    with locked(str(tmp_path)) as lock:
        lock.hold_during(query)
    with pytest.raises(ConfigError, match="another query of this process"), locked(str(tmp_path)):
        pass
    query.end()
    again: Any = Query()
    with locked(str(tmp_path)) as lock:  # also if the thread of the first has not noticed yet
        lock.hold_during(again)
    again.end()
    thread = next((it for it in threading.enumerate() if it.name == "checkpoint-lock"), None)
    if thread is not None:
        thread.join(PATIENCE_SECONDS)


def test_lock_is_released_when_the_query_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no start"), locked(str(tmp_path)):
        raise RuntimeError("no start")
    assert locking._held == {}
    with locked(str(tmp_path)):
        pass


def test_checkpoint_that_is_not_local_is_not_locked() -> None:
    with locked("hdfs://somewhere/checkpoint"), locked("hdfs://somewhere/checkpoint") as lock:
        assert lock.descriptor is None


def without_flock(error: str, location: Path, *, is_required: bool) -> str:
    """What another process prints that locks the checkpoint where `flock` fails."""
    inject = ["strace", "-f", "-o", "/dev/null", "-e", f"inject=flock:error={error}"]
    call = f"locked({str(location)!r}, is_required={is_required})"
    code = f"from {locking.__name__} import locked\nwith {call}: print('locked')"
    process = subprocess.run(
        [*inject, sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    return process.stdout + process.stderr


@needs_strace
@pytest.mark.parametrize("error", ["ENOLCK", "EOPNOTSUPP", "ENOSYS"])
def test_mount_without_locks_is_used_with_a_warning(error: str, tmp_path: Path) -> None:
    printed = without_flock(error, tmp_path, is_required=False)
    assert "locked\n" in printed
    assert printed.count(f"{tmp_path}/{locking.LOCK_FILE} cannot be locked") == 1
    assert "second process with this checkpoint is not refused" in printed


@needs_strace
def test_mount_without_locks_is_refused_where_a_lock_is_required(tmp_path: Path) -> None:
    printed = without_flock("ENOLCK", tmp_path, is_required=True)
    assert f"{tmp_path}/{locking.LOCK_FILE} cannot be locked (No locks available)" in printed
    assert "move it to a file system with locks" in printed


@needs_strace
def test_other_error_of_a_lock_names_the_file(tmp_path: Path) -> None:
    printed = without_flock("EIO", tmp_path, is_required=False)
    assert f"Input/output error: '{tmp_path}/{locking.LOCK_FILE}'" in printed
