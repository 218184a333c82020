"""Concurrent clients on two workers, one of which is killed or paused now and then; the checker has
the word. Transactions, groups and offsets are spread over both."""

from __future__ import annotations

import random
import signal
import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from millstream.testing.histories import check
from millstream.testing.histories.faults import (
    START_SECONDS_MAX,
    SWIFT_GROUPS,
    BrokerProcess,
    Fault,
    Nemesis,
    free_port,
)
from millstream.testing.histories.workload import Plan, run_workload

WORKERS = 2


class Workers(BrokerProcess):
    """`millstream serve --workers`; a fault strikes one worker, which the supervisor restarts."""

    def __init__(self, directory: Path, seed: int) -> None:
        port = free_ports(WORKERS + 1)
        serve = ["serve", "--workers", str(WORKERS), "--listen", f"127.0.0.1:{port}"]
        serve += ["--data", str(directory / "data")]
        for name, value in SWIFT_GROUPS.items():
            serve += ["--set", f"{name}={value}"]
        command = [sys.executable, "-m", "millstream.cli.entry", *serve]
        super().__init__(command, f"127.0.0.1:{port}", directory / "broker.log")
        self._ports = range(port + 1, port + 1 + WORKERS)
        self._dice = random.Random(f"workers {seed}")
        self._struck: psutil.Process | None = None

    def start(self) -> float:
        """The first time, or wait until the supervisor has started the killed worker again."""
        seconds = super().start() if self.pid is None else 0.0
        began = time.monotonic()
        while not all(listens(port) for port in self._ports):
            assert time.monotonic() < began + START_SECONDS_MAX, self._last_words()
            time.sleep(0.02)
        return seconds + time.monotonic() - began

    def kill(self) -> None:
        self._one_of_them().kill()

    def pause(self) -> None:
        self._struck = self._one_of_them()
        self._struck.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._struck is not None
        self._struck.send_signal(signal.SIGCONT)

    def __exit__(self, *error: object) -> None:
        assert self.pid is not None
        workers = self._workers()
        self.stop()
        for worker in workers:
            if worker.is_running():
                worker.kill()

    def _workers(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children()

    def _one_of_them(self) -> psutil.Process:
        while len(workers := self._workers()) < WORKERS:  # one is just being started
            time.sleep(0.02)
        return self._dice.choice(sorted(workers, key=lambda worker: worker.pid))


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> int:
    """The first of so many free ports."""
    while True:
        port = free_port()
        if not any(listens(port + number) for number in range(1, count)):
            return port


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "seconds"), [(1, 30), (2, 120)])
def test_workers_keep_their_word_under_faults(tmp_path: Path, seed: int, seconds: int) -> None:
    workers = Workers(tmp_path, seed)
    faults = [Fault.KILL, Fault.PAUSE]
    nemesis = Nemesis([workers], seed, faults, healthy_s=(2.0, 6.0))
    with workers:
        history = run_workload(
            workers.address, Plan(seed=seed, seconds=seconds, sharers=2), nemesis=nemesis
        )
    history.save(tmp_path / "history.jsonl")
    report = check(history)
    assert report.is_good, f"seed {seed}, history in {tmp_path}, {nemesis.events}\n{report}"
    assert report.summary.committed > seconds
    assert len(nemesis.events) > seconds / 10
