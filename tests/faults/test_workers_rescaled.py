"""The number of workers changes after kill -9: refused until they were stopped cleanly, and then
every acknowledged record is there. The way back to a single broker likewise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.broker.workers.test_supervisor import consume, create_topic, is_alive, produce
from tests.peers.patience import wait_until
from tests.peers.servers import Server, start_millstream, start_workers

pytestmark = pytest.mark.slow

COUNT = 300


def refusal(data: Path, *options: str) -> str:
    """What `millstream serve` says on this directory, which it must not open."""
    command = [str(Path(sys.executable).with_name("millstream")), "serve"]
    command += ["--listen", "127.0.0.1:0", "--data", str(data), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done
    return done.stderr


def kill_all(server: Server) -> None:
    """Parent and workers at once: nobody stops cleanly."""
    processes = psutil.Process(server.process.pid).children(recursive=True)
    os.kill(server.process.pid, signal.SIGSTOP)
    for process in processes:
        process.send_signal(signal.SIGKILL)
    server.process.kill()
    server.process.wait()
    wait_until(lambda: not any(map(is_alive, processes)))


def test_killed_workers_are_rescaled_after_a_clean_stop_and_go_back(tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = start_workers(data, 2)
    create_topic(server, "t")
    produce(server, "t", 0, COUNT)
    kill_all(server)

    for options in (["--workers", "3"], ["--workers", "1"], ["--workers", "0"]):
        said = refusal(data, *options)
        assert "was not stopped cleanly" in said
        assert "start with --workers 2, stop, and try again" in said
    said = refusal(data)
    assert "is the data directory of several workers" in said
    assert "go back to a single broker with --workers 0" in said

    server = start_workers(data, 2)
    assert consume(server, "t", COUNT) == list(range(COUNT))
    assert server.stop() == 0
    server = start_workers(data, 3)
    produce(server, "t", COUNT, COUNT)
    assert consume(server, "t", 2 * COUNT) == list(range(2 * COUNT))
    assert server.stop() == 0

    server = start_millstream(data, arguments=["--workers", "0"])
    assert consume(server, "t", 2 * COUNT) == list(range(2 * COUNT))
    produce(server, "t", 2 * COUNT, COUNT)
    server.kill()
    assert not (data / "workers").exists()
    server = start_millstream(data)
    assert consume(server, "t", 3 * COUNT) == list(range(3 * COUNT))
    server.stop()
    server = start_workers(data, 2)
    assert consume(server, "t", 3 * COUNT) == list(range(3 * COUNT))
    server.stop()
