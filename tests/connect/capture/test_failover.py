"""A primary fails, and its standby is promoted: the capture goes on, or says what is lost."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from millstream.broker.embedded import Broker
from millstream.connect.capture.control import start_over
from millstream.connect.capture.settings import CaptureSettings
from tests.connect.capture.conftest import SETTINGS, new_setup
from tests.connect.capture.harness import TABLE, Setup, Writer, wait_until
from tests.peers.cache import PeerMissing
from tests.peers.postgres import PostgresServer, start_postgres


class Pair:
    """A primary, its standby, and a capture that may use either."""

    def __init__(self, primary: PostgresServer, broker: Broker) -> None:
        self.primary, self.standby = primary, primary
        self.setup = new_setup(primary, broker.bootstrap_servers)
        self.setup.execute(TABLE.format("orders"))
        self.setup.execute("INSERT INTO orders SELECT g, 0, '' FROM generate_series(1, 20) g")

    def add_standby(self) -> None:
        """The standby has the slot as it is now, as if a cluster manager had copied it."""
        self.setup.sql.close()
        self.standby = self.primary.standby()
        self.setup.connect()
        ports = f"{self.primary.port},{self.standby.port}"
        name = self.setup.url.rpartition("/")[2]
        self.setup.settings["database"] = (
            f"host=127.0.0.1,127.0.0.1 port={ports} user=millstream dbname={name}"
            " target_session_attrs=read-write"
        )

    def wait_for_standby(self) -> None:
        (lsn,) = self.setup.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        with psycopg.connect(self.standby.url, autocommit=True) as other:
            query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            wait_until(lambda: other.execute(query, (lsn,)).fetchone() == (True,), "replay")

    def promote(self) -> None:
        self.setup.sql.close()
        self.setup.url = self.setup.url.replace(str(self.primary.port), str(self.standby.port))
        with psycopg.connect(self.standby.url, autocommit=True) as other:
            other.execute("SELECT pg_promote()")
        self.setup.connect()

    def write_past(self, lsn: str) -> None:
        """Move the end of the log behind a position of the old primary."""
        self.setup.execute("SELECT pg_switch_wal()")
        self.setup.execute("INSERT INTO orders VALUES (1000, 0, '')")
        behind = "SELECT pg_current_wal_lsn() > %s::pg_lsn"
        assert self.setup.execute(behind, lsn).fetchone() == (True,)

    def remove(self) -> None:
        self.setup.sql.close()
        for server in {it.directory: it for it in (self.primary, self.standby)}.values():
            server.remove()


@pytest.fixture
def pair(broker: Broker) -> Iterator[Pair]:
    try:
        made = Pair(start_postgres(*SETTINGS), broker)
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield made
    made.remove()


def captured_once(setup: Setup) -> None:
    with setup.running() as capture:
        setup.execute("UPDATE orders SET version = version + 1")
        setup.caught_up(capture)


def test_running_capture_goes_on_with_the_new_primary_if_it_has_the_slot(pair: Pair) -> None:
    """Writers go on until the primary dies, and afterwards on the standby."""
    setup = pair.setup
    captured_once(setup)
    pair.add_standby()
    with setup.running() as capture:
        writer = Writer(setup.url, ["orders"], range(100, 200), seed=1)
        writer.start()
        wait_until(lambda: capture.progress.transactions > 30, capture=capture)
        writer.stop()
        setup.caught_up(capture)
        setup.execute("INSERT INTO orders VALUES (300, 0, 'not captured before the failover')")
        pair.wait_for_standby()
        pair.primary.crash()
        wait_until(lambda: capture.progress.phase == "retrying", capture=capture)
        pair.promote()
        writer = Writer(setup.url, ["orders"], range(400, 500), seed=2)
        writer.start()
        wait_until(lambda: writer.transactions > 10)
        writer.stop()
        setup.caught_up(capture)
        assert capture.progress.state is not None
        assert capture.progress.state.timeline == 2
    setup.check("orders")
    # The old primary is back, without having heard of the failover.
    pair.primary.start()
    alone = {"database": setup.url.replace(str(pair.standby.port), str(pair.primary.port))}
    message = setup.failure(**alone)
    assert "timeline 1, which does not continue timeline 2" in message
    assert "Connect to the current primary" in message


def test_new_primary_without_the_slot_is_refused_and_can_start_over(pair: Pair) -> None:
    setup = pair.setup
    pair.add_standby()
    captured_once(setup)
    pair.wait_for_standby()
    pair.primary.crash()
    pair.promote()
    setup.execute("DELETE FROM orders WHERE id = 3")
    message = setup.failure()
    assert "is gone" in message
    assert "standbys have no slots" in message
    assert "resnapshot --new-slot" in message
    start_over(CaptureSettings(**setup.settings))
    captured_once(setup)
    setup.check("orders")


def test_slot_that_was_recreated_on_the_new_primary_is_refused(pair: Pair) -> None:
    setup = pair.setup
    pair.add_standby()
    captured_once(setup)
    pair.wait_for_standby()
    pair.primary.crash()
    pair.promote()
    setup.execute("DELETE FROM orders WHERE id = 3")
    setup.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", setup.slot)
    message = setup.failure()
    assert "ahead of the stored position" in message
    assert "resnapshot --new-slot" in message


@pytest.mark.slow
def test_standby_that_was_behind_is_refused_even_when_it_has_caught_up(pair: Pair) -> None:
    """Its log reaches behind the stored position, but contains other transactions there."""
    setup = pair.setup
    captured_once(setup)
    pair.add_standby()
    pair.wait_for_standby()
    pair.standby.stop()
    captured_once(setup)
    (lsn,) = setup.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    pair.primary.crash()
    pair.standby.start()
    pair.promote()
    pair.write_past(lsn)
    message = setup.failure()
    assert "timeline 2 began at" in message
    assert "has lost transactions that are in the topics" in message
    start_over(CaptureSettings(**setup.settings))
    captured_once(setup)
    setup.check("orders")


def test_point_in_time_recovery_is_noticed(pair: Pair, tmp_path: Path) -> None:
    """A recovery from an older backup begins a new timeline."""
    setup, server = pair.setup, pair.primary
    captured_once(setup)
    setup.sql.close()
    server.stop()
    server.copy_data(server.directory / "backup")
    server.start()
    setup.connect()
    captured_once(setup)
    (lsn,) = setup.execute("SELECT pg_current_wal_lsn()::text").fetchone()
    setup.sql.close()
    server.stop()
    shutil.rmtree(server.data)
    (server.directory / "backup").rename(server.data)
    (server.data / "recovery.signal").touch()
    server.settings = (*server.settings, "restore_command=false")
    server.start()
    setup.connect()
    wait_until(lambda: setup.execute("SELECT pg_is_in_recovery()").fetchone() == (False,))
    pair.write_past(lsn)
    assert "timeline 2 began at" in setup.failure()


def test_standby_is_named(pair: Pair) -> None:
    setup = pair.setup
    pair.add_standby()
    message = setup.failure(
        database=setup.url.replace(str(pair.primary.port), str(pair.standby.port))
    )
    assert "is a standby; connect to the primary" in message
    assert "target_session_attrs=read-write" in message
