"""A PostgreSQL server for the demo, in a directory of its own, if PostgreSQL is installed.

The server refuses to run as root: there it runs as the user `postgres`, or `nobody`.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from millstream.errors import MillstreamError
from millstream.testing.histories.faults import free_port

INSTALLED = Path("/usr/lib/postgresql")  # where Debian installs it, by version
ACCOUNTS = ("postgres", "nobody")
PROGRAMS = ("initdb", "postgres")
SETTINGS = ("wal_level=logical", "fsync=off", "unix_socket_directories=")
START_SECONDS_MAX = 60.0
READY_EVERY_S = 0.05


class Database:
    """The server; `start` it, and `stop` it in the end."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"postgresql://shop@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Create the server's directory, and start it; returns when it accepts connections."""
        programs, account = find_programs(), account_for_server()
        assert programs is not None
        self._directory = Path(tempfile.mkdtemp(prefix="millstream-postgres-"))
        self._port = free_port()
        identity: dict[str, Any] = {"cwd": "/"}
        if account is not None:
            os.chown(self._directory, account.pw_uid, account.pw_gid)
            identity |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        data, log_path = str(self._directory / "data"), self._directory / "server.log"
        options = ["-U", "shop", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        with log_path.open("ab") as log:
            made = subprocess.run(
                [programs / "initdb", "-D", data, *options],
                stdout=log, stderr=log, check=False, **identity,
            )  # fmt: skip
            if made.returncode:
                raise MillstreamError(f"initdb failed: {last_line(log_path)}")
            command = [str(programs / "postgres"), "-D", data, "-p", str(self._port)]
            for setting in ("listen_addresses=127.0.0.1", *SETTINGS):
                command += ["-c", setting]
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, **identity
            )
        self._wait_until_ready(log_path)

    def _wait_until_ready(self, log: Path) -> None:
        import psycopg

        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self.url, connect_timeout=5).close()
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise MillstreamError(f"PostgreSQL does not start: {last_line(log)}") from None
                time.sleep(READY_EVERY_S)
            else:
                return

    def stop(self) -> None:
        """End it at once, and remove its files."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()
            self._process = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)


def why_missing() -> str | None:
    """Why there can be no database; None if there can."""
    if find_programs() is None:
        return "PostgreSQL is not installed (apt-get install postgresql)"
    if importlib.util.find_spec("psycopg") is None:
        return "psycopg is not installed (pip install 'millstream[connect,postgres]')"
    if os.geteuid() == 0 and account_for_server() is None:
        return f"PostgreSQL does not run as root, and there is no user {' or '.join(ACCOUNTS)}"
    return None


def find_programs() -> Path | None:
    """The directory of the newest version that is installed."""
    found = sorted(INSTALLED.glob("*/bin/initdb"), key=lambda it: float(it.parts[-3]))
    on_path = shutil.which("initdb")
    candidates = [it.parent for it in reversed(found)]
    if on_path is not None:
        candidates.append(Path(on_path).resolve().parent)
    return next((it for it in candidates if all((it / name).exists() for name in PROGRAMS)), None)


def account_for_server() -> pwd.struct_passwd | None:
    """The user that the server runs as, if we are root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next((known[name] for name in ACCOUNTS if name in known), None)


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
