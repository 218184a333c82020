"""Redis: the installed one, or Debian's packages, unpacked without installing them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.peers.cache import PeerMissing, cached, fingerprint, require_command, run_build
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port

_PACKAGES = (
    "redis-tools", "liblzf1", "libjemalloc2", "liblua5.1-0", "lua-bitop", "lua-cjson", "libatomic1",
)  # fmt: skip


@dataclass
class RedisServer:
    """A server's process, with its data in a directory of its own."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        program, environment = _program()
        options = ["--port", str(self.port), "--dir", str(self.directory), "--appendonly", "yes"]
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [program, "--bind", "127.0.0.1", *options, "--appendfsync", "always"],
                stdout=log,
                stderr=log,
                env={**os.environ, **environment},
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.directory / "server.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"Redis does not start:\n{tail}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith(b"+PONG")
        except OSError:
            return False

    def kill(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(PATIENCE_SECONDS)

    def remove(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def running_redis() -> Iterator[RedisServer]:
    """A new server; raises `PeerMissing` where there is none."""
    server = RedisServer(Path(tempfile.mkdtemp(prefix="millstream-redis-")), free_port())
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _program() -> tuple[str, dict[str, str]]:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name):
            return found, {}
    unpacked = cached("redis", fingerprint(*_PACKAGES), _unpack)
    libraries = unpacked / "usr" / "lib"
    folders = [str(it) for it in libraries.glob("*-linux-gnu")]
    programs = unpacked / "usr" / "bin" / "redis-check-rdb"  # the server under another name
    server = unpacked / "redis-server"
    if not server.exists():
        server.symlink_to(programs)
    return str(server), {"LD_LIBRARY_PATH": ":".join(folders)}


def _unpack(target: Path) -> None:
    apt = require_command("apt-get", "install Redis or Valkey, and put it on the path")
    packages = target / "packages"
    packages.mkdir()
    run_build([apt, "download", *_PACKAGES], packages)
    found = sorted(packages.glob("*.deb"))
    if not found:
        raise PeerMissing("Debian's packages of Redis cannot be downloaded")
    for package in found:
        run_build(["dpkg", "-x", str(package), str(target)], packages)
    shutil.rmtree(packages)
