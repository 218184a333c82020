"""`millstream bridge`, as a process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import request

COMMAND = [sys.executable, "-m", "millstream.cli.entry", "bridge"]


def test_bridge_runs_until_it_is_stopped(millstream: SharedBroker, tmp_path: Path) -> None:
    topic = millstream.unique_topic()
    file = tmp_path / "edge.toml"
    file.write_text(
        f'name = "edge"\nbroker = "{millstream.bootstrap_servers}"\n'
        f'[http]\nlisten = "127.0.0.1:0"\nproduce = ["{topic}"]\n'
    )
    process = subprocess.Popen(
        [*COMMAND, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("edge is ready: http://127.0.0.1:"), line
    address = line.strip().rpartition("/")[2]
    body, headers = {"records": [{"value": 1}]}, {"content-type": "application/json"}
    assert request(address, "POST", f"/topics/{topic}", body, headers)[0] == 200
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "edge: 1 records in, 0 out" in errors


def test_bridge_checks_its_file(tmp_path: Path) -> None:
    file = tmp_path / "edge.toml"
    file.write_text('broker = "a:1"\n[statsd.app]\nlisten = "127.0.0.1:1"\ntopic = "t"\n')
    done = subprocess.run([*COMMAND, file, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "StatsdConfig(name='app'" in done.stdout
    file.write_text('broker = "a:1"\n[statsd.app]\ntopics = "t"\n')
    done = subprocess.run([*COMMAND, file], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "unknown name 'topics'; did you mean 'topic'?" in done.stderr
