"""kill -9 of the writer at random moments and around every statement: tables stay exact."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.peers.patience import PATIENCE_SECONDS
from tests.pipelines.stores.conftest import Database
from tests.pipelines.stores.writer import QUERY, expected_after

ROOT = Path(__file__).resolve().parents[3]
CALLS_MAX = 160
STATEMENTS_MIN = 30
RANDOM_KILLS = 8
BATCHES_AT_ONCE = 12
OTHER_CLIENTS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND backend_type = 'client backend'
"""


class Writers:
    """Processes that write, one after another."""

    def __init__(self, database: Database) -> None:
        command = [sys.executable, "-m", "tests.pipelines.stores.writer", database.url]
        self._server = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = 0

    def start(self, *arguments: int) -> None:
        assert self._server.stdin is not None
        print(*arguments, file=self._server.stdin, flush=True)

    def events(self) -> Iterator[int]:
        """Numbers of batches as they are written, until the process ends."""
        assert self._server.stdout is not None
        self.exit_code: int | None = None
        while self.exit_code is None:
            word, number = self._server.stdout.readline().split()
            if word == "batch":
                yield int(number)
            elif word == "pid":
                self.pid = int(number)
            else:
                self.exit_code = int(number)

    def close(self) -> None:
        self._server.kill()
        self._server.communicate()


@pytest.fixture
def writers(database: Database) -> Iterator[Writers]:
    opened = Writers(database)
    yield opened
    opened.close()


def wait_until_nobody_writes(database: Database) -> None:
    """A server goes on with the statement that it was sent, though the client was killed since."""
    if database.is_sqlite:
        return
    deadline = time.monotonic() + PATIENCE_SECONDS
    while database.rows(OTHER_CLIENTS) != [(0,)]:
        assert time.monotonic() < deadline, "a killed client's connection does not end"
        time.sleep(0.01)


def check(database: Database, *, at_least: int) -> int:
    """The tables are those of the last batch that the store names; returns its number."""
    wait_until_nobody_writes(database)
    with database.open() as store:
        last = store.last_batch(QUERY)
    done = -1 if last is None else last
    assert done >= at_least, "a batch that was reported as written is gone"
    if last is not None:
        counts, log = expected_after(last)
        assert database.rows("SELECT key, count FROM counts ORDER BY key") == counts
        assert database.rows("SELECT batch FROM log ORDER BY batch") == log
    return done


@pytest.mark.slow_with("postgres")
def test_writer_killed_around_every_statement_loses_and_doubles_nothing(
    database: Database, writers: Writers
) -> None:
    for call in range(1, CALLS_MAX):
        before = check(database, at_least=-1)
        writers.start(before + 2, call)
        reported = list(writers.events())
        check(database, at_least=max(reported, default=before))
        if writers.exit_code == 0:
            break
        assert writers.exit_code == -signal.SIGKILL
    else:
        pytest.fail(f"the writer made more than {CALLS_MAX} calls")
    assert call > STATEMENTS_MIN  # it was killed at all of these


@pytest.mark.slow
def test_writer_killed_at_random_moments_loses_and_doubles_nothing(
    database: Database, writers: Writers
) -> None:
    dice = random.Random(5)
    done = -1
    for _ in range(RANDOM_KILLS):
        writers.start(done + 1000)
        until_kill = dice.randrange(1, BATCHES_AT_ONCE)
        for count, batch_id in enumerate(writers.events()):
            done = batch_id
            if count == until_kill:
                if dice.random() < 0.7:  # somewhere in the next batch, else right after this one
                    time.sleep(dice.random() * 0.01)
                os.kill(writers.pid, signal.SIGKILL)
        done = check(database, at_least=done)
    writers.start(done + 3)
    assert list(writers.events()) == list(range(done, done + 4))
    assert check(database, at_least=done + 3) == done + 3
