"""A broker in a process of its own, whoever made it: its address, its files, its life and death."""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.peers.patience import PATIENCE_SECONDS


@dataclass
class Server:
    kind: str  # "millstream" or "apache-kafka"
    host: str
    port: int
    process: subprocess.Popen[bytes]
    data: Path
    brokers: int = 1  # that share the address

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def stop(self) -> int:
        """Ask for a clean shutdown and wait for it; returns the exit code."""
        self.process.terminate()
        try:
            return self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """kill -9: no goodbyes."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def start_millstream(
    data: Path,
    settings: Mapping[str, str] | None = None,
    *,
    port: int | None = None,
    wrapper: Sequence[str] = (),
    arguments: Sequence[str] = (),
) -> Server:
    """Start `millstream serve` on `data`, with more `arguments`; `wrapper` goes before the command
    (strace, prlimit).

    What it prints goes to a file beside the data directory, `<data>.log`.
    """
    port = port or free_port()
    options = [f"--set={name}={value}" for name, value in (settings or {}).items()]
    command = [Path(sys.executable).with_name("millstream"), "serve"]
    address = ["--listen", f"127.0.0.1:{port}", "--data", str(data)]
    log_path = data.with_name(data.name + ".log")
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*wrapper, *map(str, command), *address, *options, *arguments],
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    server = Server("millstream", "127.0.0.1", port, process, data)
    wait_until_listening(server, log_path, PATIENCE_SECONDS)
    return server


def start_workers(data: Path, workers: int, settings: Mapping[str, str] | None = None) -> Server:
    """Start `millstream serve --workers` on `data`, on any free ports."""
    options = [f"--set={name}={value}" for name, value in (settings or {}).items()]
    command = [str(Path(sys.executable).with_name("millstream")), "serve", "--workers"]
    address = ["--listen", "127.0.0.1:0", "--data", str(data)]
    log_path = data.with_name(data.name + ".log")
    with log_path.open("ab") as log:
        start = log.tell()
        process = subprocess.Popen(
            [*command, str(workers), *address, *options], stdout=log, stderr=log
        )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        ready = re.search(r"ready on 127\.0\.0\.1:(\d+) ", log_path.read_text()[start:])
        if ready is not None:
            return Server("millstream", "127.0.0.1", int(ready[1]), process, data, workers)
        time.sleep(0.02)
    process.kill()
    process.wait()
    raise RuntimeError(f"the workers do not serve:\n{_tail(log_path)}")


def _own_ports() -> Iterator[int]:
    """Ports that no other worker of this test run takes, in turn: one that was given out comes
    again last. They are below the range that outgoing connections take theirs from: else one of
    those may have it by the time a server wants it."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first, count = 15_000 + worker % 17 * 1_000, 1_000
    start = random.SystemRandom().randrange(count)
    return itertools.cycle(first + (start + number) % count for number in range(count))


_ports = _own_ports()


def free_port() -> int:
    """A port nobody listens on now, nor will before its server does."""
    while True:
        port = next(_ports)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def wait_until_listening(server: Server, log: Path, seconds_max: float) -> None:
    """Return when the port accepts connections; a process that died or hangs says why."""
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise RuntimeError(f"{server.kind} ended at start:\n{_tail(log)}")
        try:
            with socket.create_connection((server.host, server.port), timeout=1):
                return
        except OSError:
            time.sleep(0.02)
    server.kill()
    raise RuntimeError(f"{server.kind} does not listen after {seconds_max} s:\n{_tail(log)}")


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-30:])
