"""PostgreSQL, from the system's packages, with a directory of its own on a free port.

The server refuses to run as root: there it runs as the user `postgres`, or `nobody`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.peers.cache import PeerMissing
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port

_INSTALLED = Path("/usr/lib/postgresql")  # where Debian keeps them, by version
_ACCOUNTS = ("postgres", "nobody")


@dataclass
class PostgresServer:
    """A server's process; `start` and `kill` may follow each other."""

    directory: Path
    port: int
    settings: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None

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
        command = [program("postgres"), "-D", self.directory / "data", "-p", str(self.port)]
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

    def remove(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.crash()
        shutil.rmtree(self.directory, ignore_errors=True)


def start_postgres(*settings: str) -> PostgresServer:
    """A new server, ready for connections; raises `PeerMissing` where it is not installed."""
    initdb = program("initdb")
    directory = Path(tempfile.mkdtemp(prefix="millstream-postgres-"))
    account = _account()
    if account is not None:
        os.chown(directory, account.pw_uid, account.pw_gid)
    server = PostgresServer(directory, free_port(), settings)
    options = ["-U", "millstream", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
    try:
        subprocess.run(
            [initdb, "-D", directory / "data", *options],
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
