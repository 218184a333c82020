"""The daemon from which Spark's workers are forked, as Spark starts it."""

from __future__ import annotations

import inspect
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.pipelines.running.session import WORKER_DAEMON

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark")

INT = struct.Struct(">i")
MODULE = "millstream.pipelines.worker_daemon"
DAEMON_SECONDS_MAX = 60


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    """It makes a process group of its own, which it ends with itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, "pyspark.worker"],
        env=os.environ | {"PYTHON_WORKER_FACTORY_SECRET": "secret", "SPARK_REUSE_WORKER": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def read_int(stream: int | socket.socket) -> int:
    content = b""
    while len(content) < INT.size:
        wanted = INT.size - len(content)
        more = os.read(stream, wanted) if isinstance(stream, int) else stream.recv(wanted)
        assert more, "the daemon said nothing"
        content += more
    (number,) = INT.unpack(content)
    return int(number)


def libraries_of(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_daemon_forks_workers_that_have_what_tasks_import(daemon: subprocess.Popen[bytes]) -> None:
    assert daemon.stdout is not None
    port = read_int(daemon.stdout.fileno())
    with socket.create_connection(("127.0.0.1", port), DAEMON_SECONDS_MAX) as worker:
        pid = read_int(worker)  # it waits for the secret now, and has imported nothing itself
        assert all(name in libraries_of(pid) for name in ("libarrow", "duckdb", "millstream"))


def test_daemon_ends_with_spark_without_output(daemon: subprocess.Popen[bytes]) -> None:
    assert daemon.stdout is not None
    assert read_int(daemon.stdout.fileno()) > 0
    output, errors = daemon.communicate(timeout=DAEMON_SECONDS_MAX)  # closes its input
    assert (output, errors) == (b"", b"")


def test_spark_still_has_a_daemon_whose_module_can_be_set(spark: SparkSession) -> None:
    import pyspark.daemon

    arguments = inspect.signature(pyspark.daemon.manager).parameters
    assert not arguments, f"worker_daemon: pyspark.daemon.manager takes {list(arguments)} now"
    jvm: Any = spark._jvm
    key = jvm.org.apache.spark.internal.config.Python.PYTHON_DAEMON_MODULE().key()
    assert key == WORKER_DAEMON.name, f"worker_daemon: Spark's setting is {key} now"
