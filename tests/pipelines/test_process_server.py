"""Spark's Python processes, forked from one that has all imports, or not."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from millstream.pipelines.planner_site.sitecustomize import PID, SERVER
from millstream.pipelines.running import python_processes
from millstream.pipelines.running.python_processes import SITE, start_server
from tests.pipelines.test_worker_daemon import DAEMON_SECONDS_MAX, MODULE, read_int

pytest.importorskip("pyspark")

Start = Callable[..., subprocess.Popen[bytes]]


class Server:
    """A server as a session starts it."""

    def __init__(self) -> None:
        self.path = start_server()
        self.process = python_processes._servers.pop()

    def forked(self) -> list[psutil.Process]:
        found: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return found

    def remaining(self) -> list[psutil.Process]:
        """Those that do not end. One that has closed its connection still needs a moment."""
        _, alive = psutil.wait_procs(self.forked(), DAEMON_SECONDS_MAX)
        return [*alive]

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(DAEMON_SECONDS_MAX)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.end()


@pytest.fixture
def start(server: Server) -> Iterator[Start]:
    """Starts processes as Spark does, with other variables if they are given."""
    processes: list[subprocess.Popen[bytes]] = []

    def start_python(
        *arguments: str, directory: Path | None = None, **variables: str
    ) -> subprocess.Popen[bytes]:
        given = {
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": str(SITE),
            SERVER: server.path,
        }
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=directory,
            env=os.environ | given | variables,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        )
        processes.append(process)
        return process

    yield start_python
    for process in processes:
        process.communicate(timeout=DAEMON_SECONDS_MAX)
    assert server.remaining() == []


def port_of(daemon: subprocess.Popen[bytes]) -> int:
    assert daemon.stdout is not None
    return read_int(daemon.stdout.fileno())


def test_daemon_is_forked_and_ends_when_its_input_does(server: Server, start: Start) -> None:
    daemon = start("-m", MODULE, "pyspark.worker")
    assert port_of(daemon) > 0
    assert len(server.forked()) == 1
    assert psutil.Process(daemon.pid).children() == []
    output, errors = daemon.communicate(timeout=DAEMON_SECONDS_MAX)
    assert (output, errors, daemon.returncode) == (b"", b"", 0)
    assert server.remaining() == []


def test_signal_to_the_process_that_spark_knows_ends_the_forked_one(
    server: Server, start: Start
) -> None:
    daemon = start("-m", "pyspark.daemon", "pyspark.sql.worker.plan_data_source_read")
    assert port_of(daemon) > 0
    daemon.send_signal(signal.SIGTERM)
    daemon.wait(DAEMON_SECONDS_MAX)
    assert server.remaining() == []


def test_signal_while_the_server_answers_ends_the_forked_process(tmp_path: Path) -> None:
    """The forked one may tell Spark that it runs before the one that Spark started knows it."""
    path = str(tmp_path / "server")
    given = {"PYTHONHASHSEED": "0", "PYTHONPATH": str(SITE), SERVER: path}
    command = [sys.executable, "-m", "pyspark.daemon"]
    with subprocess.Popen(["sleep", "100"]) as forked, socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        server.settimeout(DAEMON_SECONDS_MAX)
        with subprocess.Popen(command, env=os.environ | given) as daemon:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as request:
                request.readline()  # that comes with the standard streams
                request.readline()
                daemon.send_signal(signal.SIGTERM)
                connection.sendall(PID.pack(forked.pid))
                assert forked.wait(DAEMON_SECONDS_MAX) == -signal.SIGTERM
            assert daemon.wait(DAEMON_SECONDS_MAX) == 0


def test_forked_program_has_the_environment_and_directory_of_the_one_that_was_started(
    server: Server, start: Start, tmp_path: Path
) -> None:
    """The program of a source finds in its environment how to connect to Spark."""
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX) as spark:
        spark.bind(f"{directory}/spark")
        spark.listen()
        spark.settimeout(DAEMON_SECONDS_MAX)
        start(
            "-m",
            "pyspark.sql.streaming.python_streaming_source_runner",
            directory=tmp_path,
            PYTHON_UNIX_DOMAIN_ENABLED="true",
            PYTHON_WORKER_FACTORY_SOCK_PATH=f"{directory}/spark",
        )
        connection, _ = spark.accept()
        with connection:
            runner = psutil.Process(read_int(connection))
            assert runner in server.forked()
            assert runner.cwd() == str(tmp_path)


@pytest.mark.parametrize(
    "variables",
    [
        {"PYTHONHASHSEED": "1"},
        pytest.param({"PYTHONWARNINGS": "ignore"}, marks=pytest.mark.slow),
        {SERVER: "/nowhere"},
    ],
)
def test_program_runs_where_it_was_started_if_the_server_is_another_python_or_gone(
    server: Server, start: Start, variables: dict[str, str]
) -> None:
    daemon = start("-m", MODULE, "pyspark.worker", **variables)
    assert port_of(daemon) > 0
    assert server.forked() == []


def test_programs_that_are_not_sparks_run_where_they_were_started(start: Start) -> None:
    output, errors = start("-m", "json.tool").communicate(b"[]", timeout=DAEMON_SECONDS_MAX)
    assert (output.strip(), errors) == (b"[]", b"")


def test_server_ends_with_its_driver_and_removes_its_socket() -> None:
    short = Server()
    short.end()
    assert short.process.returncode == 0
    assert not Path(short.path).parent.exists()
