"""Captures from other versions of PostgreSQL than the system's."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from millstream.broker.embedded import Broker
from tests.connect.capture.conftest import SETTINGS, new_setup
from tests.connect.capture.harness import TABLE, Setup, Writer, wait_until
from tests.connect.capture.test_chunks import request
from tests.peers.cache import PeerMissing
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.postgres import PostgresServer, other_version, start_postgres

pytestmark = pytest.mark.slow

VERSIONS = ["14.23.0", "16.15.0", "17.11.0", "18.6.0"]
STANDBY_SETTINGS = ("primary_slot_name=standby", "hot_standby_feedback=on")


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    try:
        started = start_postgres(*SETTINGS, version=other_version(request.param))
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield started
    started.remove()


@pytest.mark.parametrize("server", VERSIONS, indirect=True)
def test_every_version_is_captured(server: PostgresServer, broker: Broker) -> None:
    """Snapshot, stream, changes of the layout, a kill, a new snapshot, a table that was away."""
    setup = new_setup(server, broker.bootstrap_servers)
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders SELECT g, 0, '' FROM generate_series(1, 500) g")
    writer = Writer(setup.url, ["orders"], range(600), seed=4)
    writer.start()
    assert setup.spawn("after commit:4", chunk_rows=100).wait(PATIENCE_SECONDS) == -9
    with setup.running(chunk_rows=100) as capture:
        wait_until(lambda: capture.progress.transactions > 20, capture=capture)
        request(setup, "orders")
        setup.caught_up(capture)
        writer.stop()
        setup.execute("ALTER TABLE orders ADD COLUMN price numeric DEFAULT 1.5")
        setup.execute("INSERT INTO orders VALUES (1000, 0, 'a', 2.50)")
        setup.execute("ALTER TABLE orders DROP COLUMN price")
        setup.execute("UPDATE orders SET version = 1 WHERE id = 1000")
        setup.caught_up(capture)
        setup.execute(f"ALTER PUBLICATION {setup.slot} DROP TABLE orders")
        setup.execute("DELETE FROM orders WHERE id = 1000")
        wait_until(lambda: setup.read("orders")[-1].op == "r", "a new copy", capture=capture)
        setup.caught_up(capture)
    setup.check("orders")
    rows = [it.value["after"] for it in setup.read("orders") if it.value and it.key == {"id": 1000}]
    assert rows == [
        {"id": 1000, "version": 0, "note": "a", "price": "2.50"},
        {"id": 1000, "version": 1, "note": "a"},
    ]
    setup.close()


def wait_for_slot(setup: Setup, standby: PostgresServer) -> None:
    """Until the standby has a usable copy of the slot, as new as the primary's."""
    query = (
        "SELECT confirmed_flush_lsn FROM pg_replication_slots"
        " WHERE slot_name = %s AND synced AND NOT temporary AND conflicting IS NOT TRUE"
    )
    with psycopg.connect(standby.url, autocommit=True) as connection:

        def is_synchronized() -> bool:
            setup.execute("SELECT pg_log_standby_snapshot()")
            connection.execute("SELECT pg_sync_replication_slots()")
            return bool(connection.execute(query, (setup.slot,)).fetchall())

        wait_until(is_synchronized, "the copy of the slot")


@pytest.mark.parametrize("server", ["17.11.0"], indirect=True)
def test_failover_slot_goes_on_with_the_standby(server: PostgresServer, broker: Broker) -> None:
    setup = new_setup(server, broker.bootstrap_servers)
    setup.execute(TABLE.format("orders"))
    setup.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    setup.sql.close()
    standby = server.standby(*STANDBY_SETTINGS)
    setup.connect()
    name = setup.url.rpartition("/")[2]
    setup.settings |= {
        "failover": True,
        "database": f"host=127.0.0.1,127.0.0.1 port={server.port},{standby.port} user=millstream"
        f" dbname={name} target_session_attrs=read-write",
    }
    setup.execute("ALTER SYSTEM SET synchronized_standby_slots = 'standby'")
    setup.execute("SELECT pg_reload_conf()")
    try:
        with setup.running() as capture:
            setup.execute("INSERT INTO orders VALUES (1, 0, '')")
            setup.caught_up(capture)
            wait_for_slot(setup, standby)
            setup.execute("INSERT INTO orders VALUES (2, 0, '')")
            setup.caught_up(capture)
            server.crash()
            wait_until(lambda: capture.progress.phase == "retrying", capture=capture)
            setup.url = setup.url.replace(str(server.port), str(standby.port))
            with psycopg.connect(standby.url, autocommit=True) as connection:
                connection.execute("SELECT pg_promote()")
            setup.connect()
            setup.execute("ALTER SYSTEM RESET synchronized_standby_slots")
            setup.execute("SELECT pg_reload_conf()")
            setup.execute("UPDATE orders SET version = 1")
            setup.caught_up(capture)
        setup.check("orders")
        assert [it.op for it in setup.read("orders")][1:] == ["c", "u", "u"]
    finally:
        setup.sql.close()
        standby.remove()
