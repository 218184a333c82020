"""Spark drivers in processes of their own, which tests kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults.kill_points import processes_of_session
from tests.peers.patience import PATIENCE_SECONDS

REPOSITORY = Path(__file__).parents[2]
LOG = "driver.log"


@contextmanager
def driver(
    module: str, arguments: list[str], directory: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a session of its own, of which nothing is left in the end: all is killed."""
    with (directory / LOG).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, **(environment or {})},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        while left := processes_of_session(process.pid):
            for it in left:
                with suppress(ProcessLookupError):
                    os.kill(it, signal.SIGKILL)
            process.poll()
            time.sleep(0.05)
        process.wait()


def run_driver(module: str, arguments: list[str], directory: Path) -> None:
    """Until it ends by itself."""
    with driver(module, arguments, directory) as process:
        assert process.wait() == 0, log_of(directory)


def log_of(directory: Path) -> str:
    return (directory / LOG).read_text(errors="replace")[-3000:]


def planned(checkpoint: Path) -> int:
    """The number of batches that a query has planned."""
    with suppress(FileNotFoundError):
        return sum(it.name.isdigit() for it in (checkpoint / "offsets").iterdir())
    return 0


def wait_for_batches(
    process: subprocess.Popen[bytes], directory: Path, checkpoint: Path, more: int
) -> None:
    """Until so many batches are planned more than now, or the driver has ended well."""
    seen = planned(checkpoint)
    wanted = seen + more
    deadline = time.monotonic() + 2 * PATIENCE_SECONDS  # Spark has to start first
    while (now := planned(checkpoint)) < wanted and process.poll() != 0:
        if now > seen:
            seen, deadline = now, time.monotonic() + PATIENCE_SECONDS
        assert process.poll() is None, log_of(directory)
        assert time.monotonic() < deadline, f"no batch is planned: {log_of(directory)}"
        time.sleep(0.01)
