"""ZooKeeper servers as child processes: for tests, demos, and a first cluster on one machine.

PySpark contains ZooKeeper, so Java is all that has to be installed. `ZooKeeperProcess` is one
server; several with the same `ensemble` are an ensemble. For production, run ZooKeeper as its own
service: see docs/guides/zookeeper.md.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from millstream.errors import ConfigError, MillstreamError
from millstream.pipelines.running.javas import find_java

MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
# What the server needs of PySpark's jars; all of them would take a second to open.
JARS = (
    "zookeeper-*.jar",  # and zookeeper-jute
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "commons-io-*.jar",
    "audience-annotations-*.jar",
    "slf4j-api-*.jar",
    "log4j-slf4j2-impl-*.jar",
    "log4j-api-*.jar",
    "log4j-core-*.jar",
)
TLS_JARS = ("netty-[bchrt]*.jar",)  # buffer, codec, common, handler, resolver, transport
NETTY = "org.apache.zookeeper.server.NettyServerCnxnFactory"
JAVA_OPTIONS = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-Dlog4j2.level=warn",
    "-Dzookeeper.jmx.log4j.disable=true",
)
TICK_MS = 2_000
START_SECONDS_MAX = 60.0
POLL_SECONDS = 0.02
ANSWER_SECONDS_MAX = 5.0


class ZooKeeperProcess:
    """One server, with its data and its log in `directory`; they are kept when it stops."""

    def __init__(
        self,
        directory: Path,
        port: int,
        *,
        host: str = "127.0.0.1",
        tick_ms: int = TICK_MS,
        ensemble: Sequence[str] = (),
        number: int = 1,
        settings: Mapping[str, object] | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        """`tick_ms` bounds sessions: they last 2 to 20 ticks. `ensemble` has an address
        `host:port:port` for each server; `number` is this server's place in it, from 1.
        `settings` are more lines of `zoo.cfg`: `serverCnxnFactory` has to be `NETTY` for TLS."""
        self.directory = directory
        self.port = port
        self._host = host
        self._tick_ms = tick_ms
        self._ensemble = ensemble
        self._number = number
        self._more_settings = settings or {}
        self._java_options = java_options
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self._host}:{self.port}"

    def start(self) -> None:
        self.launch()
        self.wait_until_serving()

    def launch(self) -> None:
        """Start it without waiting for it: an ensemble serves when most of it has started."""
        java = find_java()
        if java is None:
            raise ConfigError("ZooKeeper needs Java: install it, or point JAVA_HOME to one")
        has_tls = self._more_settings.get("serverCnxnFactory") == NETTY
        class_path = ":".join(map(str, server_jars(JARS + TLS_JARS if has_tls else JARS)))
        data = self.directory / "data"
        data.mkdir(parents=True, exist_ok=True)
        (data / "myid").write_text(str(self._number))
        config = self.directory / "zoo.cfg"
        config.write_text("\n".join(self._settings(data)) + "\n")
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(str(java), *JAVA_OPTIONS, *self._java_options),
                    *("-cp", class_path, MAIN_CLASS, str(config)),
                ],
                stdout=log,
                stderr=log,
            )

    def _settings(self, data: Path) -> list[str]:
        servers = [f"server.{i}={address}" for i, address in enumerate(self._ensemble, 1)]
        return [
            f"tickTime={self._tick_ms}",
            f"dataDir={data}",
            f"clientPort={self.port}",
            f"clientPortAddress={self._host}",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
            "maxClientCnxns=0",  # all brokers of a test have one address
            "initLimit=20",
            "syncLimit=5",
            *servers,
            *(f"{name}={value}" for name, value in self._more_settings.items()),
        ]

    def wait_until_serving(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while self.mode() is None:
            if not self.is_running or time.monotonic() > deadline:
                raise MillstreamError(f"ZooKeeper does not start: {self._last_words()}")
            time.sleep(POLL_SECONDS)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def mode(self) -> str | None:
        """`standalone`, `leader` or `follower`; None while it does not serve."""
        lines = self.command("srvr").splitlines()
        modes = [line.removeprefix("Mode: ") for line in lines if line.startswith("Mode: ")]
        return modes[0] if modes else None

    def command(self, word: str) -> str:
        """The answer to a four-letter word; empty if there is none."""
        address = (self._host, self.port)
        try:
            with socket.create_connection(address, timeout=ANSWER_SECONDS_MAX) as connection:
                connection.sendall(word.encode())
                return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
        except OSError:
            return ""

    def pause(self) -> None:
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        self._send(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9, if it runs."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self.process is not None and self.is_running:
            self._send(number)
            self._send(signal.SIGCONT)
            self.process.wait()

    def _send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(number)

    def _last_words(self) -> str:
        log = self.directory / "server.log"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        return "\n".join(lines[-20:]) or "it said nothing"


def server_jars(patterns: Sequence[str] = JARS) -> list[Path]:
    """ZooKeeper and what its server needs; raises `ConfigError` without PySpark."""
    spark = find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise ConfigError("ZooKeeper comes with PySpark: pip install 'millstream[spark]'")
    jars = Path(spark.origin).parent / "jars"
    return [path for pattern in patterns for path in sorted(jars.glob(pattern))]
