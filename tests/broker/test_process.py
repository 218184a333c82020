"""A process that is a broker: how it ends, and what it does to the process."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.broker.process import new_event_loop
from tests.broker.handlers.calls import append, create_topic
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.wire import Wire

SERVE = """
import sys
from millstream.broker.process import run
from millstream.config.broker import BrokerConfig
run(BrokerConfig.from_values({"log.dirs": sys.argv[1], "listeners": "PLAINTEXT://127.0.0.1:0"}))
"""


def start(directory: Path) -> tuple[subprocess.Popen[str], str]:
    """A server's process, and its address out of the one line it prints when it is ready."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("millstream is ready on 127.0.0.1:")
    return process, line.split()[4].rstrip(",")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_stops_cleanly_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    process, address = start(tmp_path)
    with process, Wire(address) as wire:
        create_topic(wire, "t")
        append(wire, "t", b"a")
        process.send_signal(number)
        assert process.wait(PATIENCE_SECONDS) == 0
        assert wire.is_closed()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_clean_stop_keeps_the_leader_epoch_and_a_crash_raises_it(tmp_path: Path) -> None:
    epochs = []
    for end_with in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        process, address = start(tmp_path)
        with process, Wire(address) as wire:
            answer = wire.call("metadata", 9, topics=[{"name": "t"}], allow_auto_topic_creation=1)
            epochs.append(answer.topics[0].partitions[0].leader_epoch)
            process.send_signal(end_with)
            process.wait(PATIENCE_SECONDS)
    assert epochs == [0, 0, 1]


def test_process_that_is_a_broker_seldom_collects_garbage(tmp_path: Path) -> None:
    script = SERVE.replace("}))", "}), ready=report)")
    report = """
import gc, os, signal
def report(server):
    print(gc.get_freeze_count() > 10_000, gc.get_threshold()[0])
    os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run(
        [sys.executable, "-c", report + script, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    assert done.stdout.split() == ["True", "10000"]


def test_event_loop_is_uvloop_where_it_is_installed() -> None:
    loop = new_event_loop()
    assert type(loop).__module__.startswith("uvloop")
    loop.close()
