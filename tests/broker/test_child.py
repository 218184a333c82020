"""The child process of `Broker.start(in_process=False)`: one line in, one line out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.peers.patience import PATIENCE_SECONDS

COMMAND = [sys.executable, "-m", "millstream.broker.child"]


def test_child_serves_until_its_parent_is_gone(tmp_path: Path) -> None:
    settings = {"log.dirs": str(tmp_path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    with subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(json.dumps(settings) + "\n")
        child.stdin.flush()
        answer = json.loads(child.stdout.readline())
        assert answer["addresses"]["PLAINTEXT"].startswith("127.0.0.1:")
        child.stdin.close()
        assert child.wait(PATIENCE_SECONDS) == 0
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_child_tells_its_parent_why_it_cannot_start() -> None:
    done = subprocess.run(
        COMMAND, input='{"no.such.setting": 1}\n', capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "no.such.setting" in json.loads(done.stdout)["error"]
