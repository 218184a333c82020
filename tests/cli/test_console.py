"""`millstream console`: serves, says where, refuses clearly, and stops cleanly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from millstream import Broker
from tests.cli.conftest import Run
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))


def test_console_serves_until_it_is_stopped() -> None:
    with Broker.start() as broker:
        command = [MILLSTREAM, "console", "-b", broker.bootstrap_servers]
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith(f"console of {broker.bootstrap_servers} at http://127.0.0.1:")
            with urllib.request.urlopen(line.split()[-1] + "?format=json") as answer:
                assert json.load(answer)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
            process.communicate()


def test_console_without_a_broker_says_that_it_may_need_a_log_in() -> None:
    command = [MILLSTREAM, "console", "-b", f"127.0.0.1:{free_port()}", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        told = ""
        while "console of" not in told:
            line = process.stdout.readline()
            assert line, told
            told += line
        assert "whether the brokers want a log-in" in " ".join(told.split())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.communicate()


def test_console_refuses_a_bad_address(run: Run) -> None:
    outcome = run("console", "--listen", "nowhere")
    assert outcome.exit_code != 0
    assert "HOST:PORT" in outcome.err
