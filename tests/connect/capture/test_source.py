"""The checks of the source at each start: what would lose changes later is refused."""

from __future__ import annotations

import contextlib

import psycopg
import pytest

from millstream.broker.embedded import Broker
from millstream.connect.capture.control import start_over
from millstream.connect.capture.output import Output, Owner
from millstream.connect.capture.position import Position
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.source import Source
from millstream.connect.capture.tables import CaptureError
from tests.connect.capture.conftest import SETTINGS, new_setup
from tests.connect.capture.harness import TABLE, Setup, read_topic, wait_until
from tests.connect.capture.test_chunks import request
from tests.peers.cache import PeerMissing
from tests.peers.postgres import start_postgres


def stopped_after_one_row(setup: Setup) -> None:
    """A capture that has written a position, and has ended."""
    setup.execute(TABLE.format("orders"))
    with setup.running() as capture:
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        setup.caught_up(capture)


def test_server_without_logical_log_is_refused() -> None:
    try:
        server = start_postgres("fsync=off")
    except PeerMissing as missing:
        pytest.skip(str(missing))
    try:
        settings = CaptureSettings(name="x", database=server.url, tables=["public.*"])
        source = Source(settings)
        with pytest.raises(Exception, match="ALTER SYSTEM SET wal_level = logical"):
            source.check_server()
        source.close()
    finally:
        server.remove()


def test_failover_slots_need_a_newer_server(setup: Setup) -> None:
    assert "failover is set, but the server is PostgreSQL 15" in setup.failure(failover=True)


def test_no_matching_table_is_refused(setup: Setup) -> None:
    assert "no table matches sales.*" in setup.failure(tables=["sales.*"])


def test_table_without_identity_is_refused_before_it_is_published(setup: Setup) -> None:
    """Otherwise the application's updates would fail."""
    setup.execute("CREATE TABLE logs (line text)")
    setup.execute("INSERT INTO logs VALUES ('a')")
    message = setup.failure()
    assert "cannot capture public.logs: it has no replica identity" in message
    assert "ALTER TABLE public.logs REPLICA IDENTITY FULL" in message
    setup.execute("UPDATE logs SET line = 'b'")


def test_role_that_may_not_replicate_is_refused(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    setup.execute(f"CREATE ROLE poor_{setup.name} LOGIN")
    url = setup.url.replace("millstream@", f"poor_{setup.name}@")
    message = setup.failure(database=url)
    assert f"ALTER ROLE poor_{setup.name} REPLICATION" in message


def test_role_with_the_least_rights_captures(setup: Setup) -> None:
    """REPLICATION, CONNECT and SELECT, if the publication was created by an owner."""
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders VALUES (1, 0)")
    role = f"reader_{setup.name}"
    setup.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    url = setup.url.replace("millstream@", f"{role}@")
    assert "may not read it. Run `GRANT" in setup.failure(database=url)
    setup.execute(f"GRANT SELECT (id, version, note) ON orders TO {role}")
    message = setup.failure(database=url)
    assert "let an owner of the tables run `CREATE PUBLICATION" in message
    setup.execute(message.split("`")[1])
    with setup.running(database=url, manage_publication=False) as capture:
        setup.execute("UPDATE orders SET version = 1")
        setup.caught_up(capture)
    setup.check("orders")


@pytest.mark.parametrize("is_first", [True, False], ids=["first snapshot", "beside the stream"])
def test_table_whose_rows_are_hidden_from_the_role_is_not_copied(
    setup: Setup, is_first: bool
) -> None:
    """Row level security does not apply to the stream, so the topic would lack some rows."""
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders VALUES (1, 0)")
    setup.execute("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    role = f"reader_{setup.name}"
    setup.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    setup.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    setup.execute(f"CREATE PUBLICATION millstream_{setup.name} FOR TABLE orders")
    url = setup.url.replace("millstream@", f"{role}@")
    cure = f"ALTER ROLE {role} BYPASSRLS"
    if is_first:
        message = setup.failure(database=url)
        assert "cannot capture public.orders: row level security" in message
        assert cure in message
    else:
        with setup.running(snapshot="never") as capture:
            setup.caught_up(capture)
        request(setup, "orders")
        with setup.running(database=url) as capture:
            wait_until(lambda: "public.orders" in capture.progress.table_problems, capture=capture)
            assert cure in capture.progress.table_problems["public.orders"]
    setup.execute(f"ALTER ROLE {role} BYPASSRLS")
    with setup.running(database=url) as capture:
        setup.caught_up(capture)
    setup.check("orders")


def test_table_that_the_role_may_not_read_is_named(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    role = f"reader_{setup.name}"
    setup.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    setup.execute(f"CREATE PUBLICATION millstream_{setup.name} FOR TABLE orders")
    url = setup.url.replace("millstream@", f"{role}@")
    assert f"GRANT SELECT ON public.orders TO {role}" in setup.failure(database=url)


def test_slot_that_is_gone_is_refused(setup: Setup) -> None:
    stopped_after_one_row(setup)
    setup.drop_slot()
    message = setup.failure()
    assert f"slot {setup.slot} is gone" in message
    assert "resnapshot --new-slot" in message


def test_recreated_slot_is_refused(setup: Setup) -> None:
    stopped_after_one_row(setup)
    setup.drop_slot()
    setup.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", setup.slot)
    assert "ahead of the stored position" in setup.failure()


def test_advanced_slot_is_refused(setup: Setup) -> None:
    stopped_after_one_row(setup)
    setup.execute("INSERT INTO orders VALUES (2, 0)")
    setup.wait_until_slot_is_free()
    advance = "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())"
    setup.execute(advance, setup.slot)
    assert "it was recreated or advanced, and the changes in between are lost" in setup.failure()


def test_slot_of_another_plugin_is_refused(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    setup.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", setup.slot)
    assert "exists, but topic" in setup.failure()


def test_dropped_publication_is_refused(setup: Setup) -> None:
    stopped_after_one_row(setup)
    setup.execute(f"DROP PUBLICATION {setup.slot}")
    assert "was dropped: changes since then are lost" in setup.failure()


def test_recreated_publication_is_refused(setup: Setup) -> None:
    stopped_after_one_row(setup)
    setup.execute(f"DROP PUBLICATION {setup.slot}")
    setup.execute("INSERT INTO orders VALUES (2, 0)")
    setup.execute(f"CREATE PUBLICATION {setup.slot} FOR TABLE orders")
    assert "was dropped and recreated" in setup.failure()


@pytest.mark.parametrize("manages", [True, False])
def test_publication_without_updates_is_refused(setup: Setup, manages: bool) -> None:
    """Topics would keep the old rows."""
    setup.execute(TABLE.format("orders"))
    setup.execute(f"CREATE PUBLICATION {setup.slot} FOR TABLE orders WITH (publish = 'insert')")
    message = setup.failure(manage_publication=manages)
    assert f"publication {setup.slot} does not publish update, delete, truncate" in message
    setup.execute(message.split("`")[1])
    with setup.running(manage_publication=manages) as capture:
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        setup.execute("UPDATE orders SET version = 1")
        setup.caught_up(capture)
    setup.check("orders")


def test_publication_that_stops_publishing_deletes_ends_the_capture(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    with contextlib.suppress(CaptureError), setup.running() as capture:
        setup.caught_up(capture)
        setup.execute(f"ALTER PUBLICATION {setup.slot} SET (publish = 'insert, update, truncate')")
        wait_until(lambda: not capture.is_alive())  # type: ignore[attr-defined]
    assert "does not publish delete" in str(capture.error)  # type: ignore[attr-defined]


def test_slot_of_another_capture_is_refused(setup: Setup) -> None:
    """Also if this capture was stopped before it could create its own slot."""
    setup.execute(TABLE.format("orders"))
    with setup.running() as capture:
        setup.caught_up(capture)
    start_over(CaptureSettings(**setup.settings))
    other = {"name": f"{setup.name}x", "slot": setup.slot}
    with setup.running(**other) as capture:
        setup.caught_up(capture)
        assert f"slot {setup.slot} is read by another capture" in setup.failure()
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        setup.caught_up(capture)
    settings = CaptureSettings(**setup.settings | other)
    assert len(read_topic(setup.bootstrap, settings.topic_of("public", "orders"))) == 1


def test_position_of_another_database_is_refused(setup: Setup) -> None:
    stopped_after_one_row(setup)
    other = setup.url.rpartition("/")[0] + "/postgres"
    with psycopg.connect(other, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS elsewhere (id int PRIMARY KEY)")
        message = setup.failure(database=other)
    assert "but this is postgres of" in message


def test_database_that_lost_transactions_is_refused(setup: Setup) -> None:
    """As after a failover to a standby that was behind."""
    stopped_after_one_row(setup)
    settings = CaptureSettings(**setup.settings)
    output = Output(settings)
    output.open(Owner())
    position = output.read_position()
    assert position is not None
    output.commit(Position(position.lsn + 2**40))
    output.close()
    message = setup.failure()
    assert "behind the stored position" in message
    assert "failover" in message


def test_invalidated_slot_is_refused(broker: Broker) -> None:
    try:
        server = start_postgres(
            *SETTINGS, "max_slot_wal_keep_size=1MB", "max_wal_size=32MB", "min_wal_size=32MB"
        )
    except PeerMissing as missing:
        pytest.skip(str(missing))
    try:
        setup = new_setup(server, broker.bootstrap_servers)
        stopped_after_one_row(setup)
        for _ in range(4):
            setup.execute("INSERT INTO orders SELECT max(id) + 1, 0 FROM orders")
            setup.execute("SELECT pg_switch_wal()")
        setup.execute("CHECKPOINT")
        assert f"slot {setup.slot} is invalidated" in setup.failure()
        start_over(CaptureSettings(**setup.settings))
        with setup.running() as capture:
            setup.caught_up(capture)
        setup.check("orders")
        setup.close()
    finally:
        server.remove()


def test_slot_that_waits_names_the_open_transactions(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    with psycopg.connect(setup.url, application_name="forgotten") as other:
        other.execute("INSERT INTO orders VALUES (1, 0)")
        message = setup.failure(slot_timeout_seconds=0.5)
        assert "creating the slot waits for transactions" in message
        assert "forgotten, idle in transaction" in message
        other.commit()
    with setup.running() as capture:
        setup.caught_up(capture)
    setup.check("orders")
