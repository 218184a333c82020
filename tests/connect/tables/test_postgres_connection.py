"""Which failures of PostgreSQL pass, and how the others are told."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from millstream.connect.tables.postgres_connection import connect, explained, passes, patiently
from millstream.errors import StoreError
from tests.peers.postgres import PostgresServer


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (psycopg.OperationalError("connection lost"), True),
        (psycopg.errors.AdminShutdown("going down"), True),
        (psycopg.errors.CannotConnectNow("starting"), True),
        (psycopg.errors.DeadlockDetected("deadlock"), True),
        (psycopg.errors.DiskFull("no space"), False),
        (psycopg.errors.UniqueViolation("twice"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failures_that_pass_are_known(error: psycopg.Error, verdict: bool) -> None:
    assert passes(error) is verdict


def test_action_is_tried_again_until_it_succeeds() -> None:
    outcomes = iter([psycopg.OperationalError("away"), psycopg.OperationalError("away"), "done"])

    def action() -> str:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert patiently(action, "test") == "done"


def test_permanent_failure_is_raised_after_the_timeout() -> None:
    def action() -> None:
        raise psycopg.OperationalError("connection\n  refused")

    with pytest.raises(StoreError, match="PostgreSQL cannot test: connection refused"):
        patiently(action, "test", seconds_max=0.2)


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("INSERT INTO people VALUES ('ada (lovelace)', NULL)", 'null value in column "age"'),
        ("INSERT INTO people SELECT * FROM people", "people_pkey"),
    ],
)
def test_failure_is_told_without_the_row(
    postgres: PostgresServer, statement: LiteralString, told: str
) -> None:
    with connect(postgres.url) as connection:
        connection.execute("CREATE TEMP TABLE people (name text PRIMARY KEY, age int NOT NULL)")
        connection.execute("INSERT INTO people VALUES ('ada (lovelace)', 36)")
        with pytest.raises(psycopg.Error, match="lovelace") as caught:
            connection.execute(statement)
    text = str(explained(caught.value, "test"))
    assert told in text
    assert "lovelace" not in text


def test_commits_wait_for_the_disk_even_where_the_server_would_not(
    postgres: PostgresServer,
) -> None:
    url = f"{postgres.url}?options=-csynchronous_commit%3Doff"
    with connect(url) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
        assert connection.execute("SHOW client_encoding").fetchone() == ("UTF8",)


def test_locks_of_a_driver_that_hangs_are_given_up(postgres: PostgresServer) -> None:
    with connect(postgres.url) as connection:
        found = connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        assert found == ("2min",)
        connection.execute("SET idle_in_transaction_session_timeout = '50ms'")
        connection.execute("BEGIN")
        with connect(postgres.url) as other:
            alive = "SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
            while other.execute(alive, (connection.info.backend_pid,)).fetchone() != (0,):
                pass
        with pytest.raises(psycopg.Error) as caught:
            connection.execute("SELECT 1")
        assert passes(caught.value)
        assert connection.closed
