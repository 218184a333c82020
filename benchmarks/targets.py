"""The brokers that are measured: real server processes, each with a data directory of its own."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil
from tests.peers.servers import free_port

from benchmarks.raw_client import connect, metadata_request, receive_frame

if TYPE_CHECKING:
    from confluent_kafka.admin import ClusterMetadata


@dataclass(frozen=True)
class Scale:
    """How much work: `quick` proves that a benchmark runs, `full` is worth reading."""

    factor: float = 1.0
    rounds: int = 3
    queries: tuple[str, ...] = ()  # only these of a benchmark that has many; none: all

    def of(self, count: int) -> int:
        return max(100, int(count * self.factor))

    @property
    def is_quick(self) -> bool:
        return self.rounds == 1

    def seconds(self, full: float) -> float:
        return max(0.3, full * self.factor)


FULL = Scale()
QUICK = Scale(factor=0.02, rounds=1)
IDLE_LOOK_SECONDS = 0.5
IDLE_SHARE_MAX = 0.1  # of a core
IDLE_WAIT_SECONDS_MAX = 30.0


@dataclass
class Target:
    """A broker's process: `command` starts it on `port` with `directory` as its data."""

    name: str = ""
    port: int = 0
    directory: Path = field(default_factory=Path)
    process: subprocess.Popen[bytes] | None = None
    started_in: float = 0.0
    last_topic: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)  # of the broker, beside its defaults

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def prepare(self) -> None:
        """What must be done once before the first start."""

    def flushes(self) -> int | None:
        """How often this server flushed so far, where it can tell."""
        return None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Self:
        """Start the process and wait for its first Metadata answer."""
        log = (self.directory / "server.out").open("ab")
        started = time.perf_counter()
        self.process = subprocess.Popen(
            self.command(), stdout=log, stderr=subprocess.STDOUT, env=_environment()
        )
        log.close()
        while not self._answers():
            if self.process.poll() is not None or time.perf_counter() - started > 120:
                tail = (self.directory / "server.out").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{self.name} did not start:\n{tail}")
            time.sleep(0.002)
        self.started_in = time.perf_counter() - started
        return self

    def _answers(self) -> bool:
        try:
            with connect(self.bootstrap, timeout=5) as connection:
                connection.sendall(metadata_request())
                return len(receive_frame(connection)) > 0
        except OSError:
            return False

    def stop(self) -> None:
        """A clean stop."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(timeout=120)

    def memory_mb(self) -> float:
        return sum(it.memory_info().rss for it in self._members()) / 1e6

    def cpu_seconds(self) -> float:
        """CPU time of its processes since their start."""
        return sum(sum(it.cpu_times()[:2]) for it in self._members())

    def _members(self) -> list[psutil.Process]:
        assert self.process is not None
        process = psutil.Process(self.process.pid)
        return [process, *process.children(recursive=True)]

    @contextmanager
    def fresh(self, settings: Mapping[str, str] | None = None) -> Iterator[Target]:
        """Another server of this kind, with a directory of its own, started."""
        other = type(self)()
        other.settings = settings or {}
        with running(other):
            yield other


class MillstreamTarget(Target):
    def __init__(self) -> None:
        super().__init__(name="millstream")

    def command(self) -> Sequence[str]:
        program = str(Path(sys.executable).parent / "millstream")
        listen = f"127.0.0.1:{self.port}"
        command = [program, "serve", "--listen", listen, "--data", str(self.directory / "data")]
        return [*command, *(f"--set={name}={value}" for name, value in self.settings.items())]

    def flushes(self) -> int | None:
        """`serve` answers SIGUSR1 with a line of counters in its log."""
        if self.process is None:
            return None
        output = self.directory / "server.out"
        seen = output.stat().st_size
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.perf_counter() + 5
        while time.perf_counter() < deadline:
            found = re.search(r"flushes=(\d+)", output.read_text(errors="replace")[seen:])
            if found:
                return int(found[1])
            time.sleep(0.01)
        return None


class WorkersTarget(MillstreamTarget):
    """`serve --workers`, which takes one more port than workers."""

    def __init__(self, workers: int = 2) -> None:
        super().__init__()
        self.name = f"{workers} workers"
        self._workers = workers

    def prepare(self) -> None:
        ports: list[int] = []
        while len(ports) <= self._workers:
            port = free_port()
            ports = [*ports, port] if ports and port == ports[-1] + 1 else [port]
        self.port = ports[0]

    def command(self) -> Sequence[str]:
        return [*super().command(), "--workers", str(self._workers)]

    def flushes(self) -> int | None:
        return None  # each worker counts its own


class NullTarget(Target):
    """Answers everything and stores nothing: the ceiling that the client itself sets."""

    def __init__(self) -> None:
        super().__init__(name="null")

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", "benchmarks.null_broker", str(self.port)]


@contextmanager
def running(target: Target) -> Iterator[Target]:
    """The target, started in a new temporary directory; stopped and removed at the end."""
    target.directory = Path(tempfile.mkdtemp(prefix=f"bench-{target.name}-"))
    target.port = free_port()
    try:
        target.prepare()
        yield target.start()
    finally:
        target.kill()
        shutil.rmtree(target.directory, ignore_errors=True)


def create_topic(target: Target, *, partitions: int, **settings: str) -> str:
    """A new topic, with a name of fixed length so that raw answers have one size."""
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"bench-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    config = {name.replace("_", "."): value for name, value in settings.items()}
    new = NewTopic(topic, partitions, 1, config=config)
    admin.create_topics([new], operation_timeout=30)[topic].result(60)
    target.last_topic = topic
    return topic


def wait_until_idle(targets: Sequence[Target]) -> None:
    """Wait until the processes of these targets need no CPU time: a JVM goes on compiling for
    seconds after its last request, on cores that the next target may need."""
    deadline = time.monotonic() + IDLE_WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        before = sum(target.cpu_seconds() for target in targets)
        time.sleep(IDLE_LOOK_SECONDS)
        used = sum(target.cpu_seconds() for target in targets) - before
        if used < IDLE_SHARE_MAX * IDLE_LOOK_SECONDS:
            return


def wait_for_leaders(target: Target, topic: str, partitions: int) -> ClusterMetadata:
    """The metadata of a topic, once all of its partitions have a leader."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    while True:
        found = admin.list_topics(topic, timeout=30)
        leaders = [it.leader for it in found.topics[topic].partitions.values()]
        if len(leaders) == partitions and min(leaders) >= 0:
            return found
        time.sleep(0.1)


def _environment() -> dict[str, str]:
    """As a user has it: with compiled bytecode, which some build machines switch off."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
