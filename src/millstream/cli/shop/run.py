"""The run behind `millstream demo`: a broker, customers, pipelines that get killed, and an audit.

The pipelines are run as a user would: their file is copied into a directory as `shop.py`, and
`millstream run shop.py` is started there, in a process that can be killed with all that it starts.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from confluent_kafka.admin import NewTopic

from millstream.cli.cluster import wait_each
from millstream.cli.failures import CommandFailed
from millstream.cli.shop import history, pipelines, sales_2
from millstream.cli.shop.audit import Verdict, judge, read_made
from millstream.cli.shop.browsing import start_console, write_account
from millstream.cli.shop.catalogue import Catalogue
from millstream.cli.shop.traffic import Customers
from millstream.cli.shop.watching import Desk, Watcher
from millstream.testing.histories.faults import BrokerProcess

if TYPE_CHECKING:
    from millstream.console.server import ConsoleServer

SETTINGS = """\
trigger = "1 second"
master = "local[2]"

[spark]
"""
STOP_TIMEOUT_S = 120.0
BUSY_TIMEOUT_S = 10.0  # how long a kill waits for a moment at which something is being written
BUSY_EVERY_S = 0.01
OUR_VARIABLES = "MILLSTREAM_"  # the user's own settings, which are not meant for the shop
TOPICS = (
    pipelines.orders,
    pipelines.page_views,
    pipelines.enriched,
    pipelines.alerts,
    pipelines.frauds,
)
DEPLOYED = "deployed version 2"  # printed before Spark is started


class ShopRun:
    """Everything that runs, in a temporary directory; use it as a context manager."""

    def __init__(self, rate: int, seed: int) -> None:
        self._scratch = tempfile.TemporaryDirectory(prefix="millstream-shop-")
        self.directory = Path(self._scratch.name)
        self.store = self.directory / ".millstream" / "store.db"
        self.broker = BrokerProcess.millstream(self.directory)
        self.customers = Customers(self.broker.address, rate, seed)
        self.watcher = Watcher(self.broker.address, self.store)
        self.desk = Desk(self.broker.address)
        self.catalogue = Catalogue(self.directory, self.broker.address, seed, self._spawn)
        self.console: ConsoleServer | None = None
        self._driver: subprocess.Popen[bytes] | None = None
        self._second: subprocess.Popen[bytes] | None = None
        self._history: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.catalogue.stop()
        for process in self._started:
            kill_group(process)
        self.customers.stop()
        self.desk.stop()
        self.watcher.close()
        if self.console is not None:
            self.console.stop()
        self.broker.stop()
        self._scratch.cleanup()

    def open(self) -> None:
        """Start the broker, create the topics, let the customers in."""
        self.broker.start()
        wanted = [NewTopic(it.name, it.partitions, 1) for it in TOPICS]
        wait_each(self.watcher.cluster.admin.create_topics(wanted), "creating topics")
        shutil.copy(pipelines.__file__, self.directory / "shop.py")
        shutil.copy(sales_2.__file__, self.directory)
        settings = SETTINGS + "".join(f'"{name}" = "{it}"\n' for name, it in history.SPARK.items())
        (self.directory / "millstream.toml").write_text(settings)
        self.customers.start()
        self.desk.start()
        self.console = start_console(self.broker.address)

    # The pipelines, in a process of their own

    def start_pipelines(self, target: str) -> int:
        """Start `millstream run` with the file, or some pipelines of it; returns its process id."""
        self._driver = self._command("run", target)
        return self._driver.pid

    def check_pipelines(self) -> None:
        """Raises if they have ended by themselves."""
        for process, what, log in (
            (self._driver, "the pipelines", "run"),
            (self._second, "version 2 of sales", "deploy"),
        ):
            code = None if process is None else process.poll()
            if code is not None:
                raise CommandFailed(f"{what} ended with {code}: {self.last_words(log)}")

    def kill_pipelines(self) -> int:
        """kill -9 in the middle of a write; returns how many transactions are left open by it."""
        deadline = time.monotonic() + BUSY_TIMEOUT_S
        while not self.watcher.open_transactions() and time.monotonic() < deadline:
            time.sleep(BUSY_EVERY_S)
        kill_group(self._driver)
        self._driver = None
        return self.watcher.open_transactions()

    def stop_pipelines(self) -> None:
        """As Ctrl-C does."""
        running = [it for it in (self._driver, self._second) if it is not None]
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            process.wait(STOP_TIMEOUT_S)
        self._driver = self._second = None

    # A second version of one of them

    def deploy_second(self) -> None:
        """Start `millstream deploy`, which registers the version before it starts Spark."""
        self._second = self._command("deploy", "sales_2.py:sales")

    @property
    def is_second_deployed(self) -> bool:
        return DEPLOYED in self._log_of("deploy").read_text()

    def compare_versions(self) -> subprocess.Popen[bytes]:
        return self._command("diff", sales_2.sales.name, "1", "2", "--time", "since")

    def switch_versions(self) -> subprocess.Popen[bytes]:
        return self._command("switch", sales_2.sales.name, "2")

    def _command(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        address = ("--bootstrap-server", self.broker.address)
        return self._spawn(name, "-m", "millstream.cli.entry", name, *arguments, *address)

    # The batch over the log

    def start_history(self) -> None:
        """Start Spark for it; it reads nothing yet."""
        arguments = [
            self.broker.address,
            str(self._history_rows),
            str(self.directory / "spark.log"),
        ]
        self._history = self._spawn("history", "-m", history.__name__, *arguments)

    def compute_history(self) -> None:
        """The customers have gone: what they sent is all there now."""
        assert self._history is not None
        assert self._history.stdin is not None
        self._history.stdin.close()

    @property
    def has_history(self) -> bool:
        """Whether the batch is done; raises if it failed."""
        assert self._history is not None
        code = self._history.poll()
        if code:
            raise CommandFailed(f"the batch over the log failed: {self.last_words('history')}")
        return code == 0

    def audit(self) -> Verdict:
        rows = json.loads(self._history_rows.read_text())
        made = read_made(self.broker.address, self.store)
        verdict = judge(self.customers.ledger, rows, made)
        if self.catalogue.missing is None:
            verdict.findings.extend(self.catalogue.audit())
        write_account(self.broker.address, verdict)
        return verdict

    @property
    def _history_rows(self) -> Path:
        return self.directory / "history.json"

    # Processes

    def _spawn(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """A Python in a process group of its own, which writes what it says to a file."""
        theirs = {it: value for it, value in os.environ.items() if not it.startswith(OUR_VARIABLES)}
        theirs["PYTHONUNBUFFERED"] = "1"  # else what it printed comes after its last words
        with self._log_of(name).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.directory,
                env=theirs,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def _log_of(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def last_words(self, name: str) -> str:
        lines = self._log_of(name).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def kill_group(process: subprocess.Popen[bytes] | None) -> None:
    """kill -9, with all that it started: Spark's JVM is in the same group."""
    if process is not None and process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
