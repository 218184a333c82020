"""`millstream zookeeper`: starts, says so, refuses clearly and stops cleanly."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.testing.zookeeper import ZooKeeperProcess
from tests.cli.conftest import Run
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port

pytestmark = pytest.mark.java

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


def test_zookeeper_serves_until_it_is_stopped(tmp_path: Path) -> None:
    port = free_port()
    command = [MILLSTREAM, "zookeeper", "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert f"ZooKeeper is ready on 127.0.0.1:{port}" in process.stdout.readline()
        assert ZooKeeperProcess(tmp_path, port).mode() == "standalone"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
    assert ZooKeeperProcess(tmp_path, port).mode() is None


def test_zookeeper_refuses_a_bad_address(run: Run) -> None:
    outcome = run("zookeeper", "--listen", "nowhere")
    assert outcome.exit_code == 2
    assert "HOST:PORT" in outcome.err
