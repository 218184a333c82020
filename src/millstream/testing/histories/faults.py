"""Faults for brokers: kill -9, pause, restart; and a thread that injects them at random.

`BrokerProcess` is any broker that can be started by a command; `BrokerProcess.millstream` starts
ours. `Nemesis` is a thread that injects faults, from a seed, and restores the broker at the end.
"""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType

from millstream.errors import MillstreamError

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
LISTENING_EVERY_S = 0.02
# Members join and leave within seconds here, so timeouts are shorter than in production.
SWIFT_GROUPS: dict[str, object] = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.min.heartbeat.interval.ms": 500,
    "group.consumer.heartbeat.interval.ms": 500,
    "group.share.min.session.timeout.ms": 10_000,
    "group.share.session.timeout.ms": 10_000,
    "group.share.min.heartbeat.interval.ms": 500,
    "group.share.heartbeat.interval.ms": 500,
    "group.share.record.lock.duration.ms": 15_000,
}


class BrokerProcess:
    """A broker as a child process; its data is kept."""

    def __init__(self, command: Sequence[str], address: str, log: Path) -> None:
        self.command = list(command)
        self.address = address
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def millstream(
        cls, directory: Path, settings: Mapping[str, object] | None = None
    ) -> BrokerProcess:
        """`millstream serve` on a free port, with its data and its log in `directory`."""
        address = f"127.0.0.1:{free_port()}"
        serve = ["serve", "--listen", address, "--data", str(directory / "data")]
        for name, value in (SWIFT_GROUPS | dict(settings or {})).items():
            serve += ["--set", f"{name}={value}"]
        command = [sys.executable, "-m", "millstream.cli.entry", *serve]
        return cls(command, address, directory / "broker.log")

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> float:
        """Start it; returns the seconds until it accepts connections."""
        began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self.command, stdout=log, stderr=log)
        while not self._is_listening():
            if self._process.poll() is not None:
                raise MillstreamError(f"the broker ended at its start: {self._last_words()}")
            if time.monotonic() > began + START_SECONDS_MAX:
                self.kill()
                raise MillstreamError(f"the broker does not listen: {self._last_words()}")
            time.sleep(LISTENING_EVERY_S)
        return time.monotonic() - began

    def stop(self) -> None:
        """Stop it cleanly, if it runs. One that does not stop in time is killed: an error."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise MillstreamError(f"the broker does not stop: {self._last_words()}") from None

    def kill(self) -> None:
        """kill -9, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Pause it with SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a process that is paused."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.kill()

    def _is_listening(self) -> bool:
        host, _, port = self.address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return False
        return True

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-1000:].strip()


def free_port() -> int:
    """A port nobody listens on, from below the range that outgoing connections take theirs from:
    else one of those may have it while the broker is down."""
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Fault(StrEnum):
    KILL = "kill"
    PAUSE = "pause"
    RESTART = "restart"


@dataclass
class Nemesis:
    """Injects random faults into brokers, one at a time, until stopped, and leaves them healthy."""

    brokers: Sequence[BrokerProcess]
    seed: int
    faults: Sequence[Fault] = tuple(Fault)
    healthy_s: tuple[float, float] = (1.0, 4.0)
    broken_s: tuple[float, float] = (0.1, 2.0)
    events: list[str] = field(default_factory=list)
    failure: BaseException | None = None

    def start(self) -> None:
        """Inject faults in a thread until `stop`."""
        self._dice = random.Random(f"nemesis {self.seed}")
        self._targets = random.Random(f"targets {self.seed}")
        self._stopping = threading.Event()
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="nemesis", daemon=True)
        self._thread.start()

    def heal(self) -> None:
        """Stop injecting faults; returns when all brokers are healthy."""
        self._stopping.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._dice.uniform(*self.healthy_s)):
                broker = self._targets.choice(self.brokers)
                fault, broken_s = self._dice.choice(self.faults), self._dice.uniform(*self.broken_s)
                self._strike(broker, fault, broken_s)
        except Exception as error:  # noqa: BLE001 - `heal` raises it
            self.failure = error

    def _strike(self, broker: BrokerProcess, fault: Fault, broken_s: float) -> None:
        self.tell(f"{fault.value} {broker.address} for {broken_s:.1f} s")
        match fault:
            case Fault.KILL:
                broker.kill()
                self._stopping.wait(broken_s)
                broker.start()
            case Fault.RESTART:
                broker.stop()
                self._stopping.wait(broken_s)
                broker.start()
            case Fault.PAUSE:
                broker.pause()
                self._stopping.wait(broken_s)
                broker.resume()
        self.tell("healthy again")

    def tell(self, event: str) -> None:
        """Add a line to `events`, with the seconds since the start."""
        self.events.append(f"{time.monotonic() - self._began:6.1f} s  {event}")
