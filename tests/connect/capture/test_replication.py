"""The replication connection, with a real server."""

from __future__ import annotations

import psycopg
import pytest

from millstream.connect.capture import replication
from millstream.connect.capture.replication import (
    CommandFailed,
    Receiver,
    ReplicationConnection,
    ReplicationLost,
    connection_string,
    parse_timeline_history,
)
from tests.connect.capture.harness import TABLE, Setup, wait_until
from tests.peers.patience import PATIENCE_SECONDS

PUBLICATION = "p"


@pytest.fixture
def streaming(setup: Setup) -> ReplicationConnection:
    setup.execute(TABLE.format("orders"))
    setup.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE orders")
    connection = ReplicationConnection(setup.url)
    slot = connection.create_slot(setup.slot, lambda: None)
    connection.start(setup.slot, PUBLICATION, slot.consistent_lsn)
    return connection


def test_session_options_are_added_to_the_users() -> None:
    found = connection_string("host=h options='-c work_mem=1MB'", replication="database")
    assert "-c work_mem=1MB -c client_encoding=UTF8 -c datestyle=ISO" in found
    assert "application_name='millstream capture'" in found


def test_values_do_not_depend_on_the_databases_settings(setup: Setup) -> None:
    name = setup.url.rpartition("/")[2]
    setup.execute(f"ALTER DATABASE {name} SET datestyle = 'German'")
    connection = ReplicationConnection(setup.url)
    style = connection.raw.parameter_status(b"DateStyle")
    assert style is not None
    assert style.startswith(b"ISO")
    connection.close()


def test_system_is_identified(setup: Setup) -> None:
    connection = ReplicationConnection(setup.url)
    system = connection.identify()
    (expected,) = setup.execute(
        "SELECT system_identifier::text FROM pg_control_system()"
    ).fetchone()
    assert (system.id, system.database) == (expected, setup.url.rpartition("/")[2])
    connection.close()


def test_timeline_history_is_parsed(setup: Setup) -> None:
    text = "# restored\n1\t0/19000F8\tno recovery target specified\n\n2\t1/3000000\tbefore x\n"
    assert parse_timeline_history(text) == [(1, 0x19000F8), (2, 0x103000000)]
    connection = ReplicationConnection(setup.url)
    assert connection.timeline_history(1) == []
    connection.close()


def test_unreachable_server_is_named() -> None:
    with pytest.raises(ReplicationLost, match="cannot connect for replication"):
        ReplicationConnection("host=127.0.0.1 port=1 dbname=x user=y")


def test_refused_command_has_its_sqlstate(setup: Setup) -> None:
    connection = ReplicationConnection(setup.url)
    with pytest.raises(CommandFailed, match="does not exist") as refused:
        connection.start("nowhere", "p", 0)
    assert refused.value.sqlstate == "42704"
    connection.close()


def test_blocked_consumer_keeps_its_connection(
    setup: Setup, streaming: ReplicationConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status updates go on while nothing is taken, and the received bytes are bounded."""
    monkeypatch.setattr(replication, "STATUS_SECONDS", 0.1)
    monkeypatch.setattr(replication, "RECEIVED_BYTES_MAX", 100_000)
    receiver = Receiver(streaming, 0)
    query = (
        "SELECT sent_lsn, reply_time FROM pg_stat_replication"
        " JOIN pg_replication_slots ON pid = active_pid WHERE slot_name = %s"
    )
    replies = set()

    def is_heard_again() -> bool:
        """While the server has more to send, and cannot."""
        replies.add(setup.execute(query, setup.slot).fetchone())
        return len({reply for _, reply in replies}) > len({sent for sent, _ in replies}) + 3

    try:
        setup.execute(
            "INSERT INTO orders SELECT g, 0, repeat('x', 400) FROM generate_series(1, 9000) g"
        )
        wait_until(lambda: receiver._received_bytes >= 100_000)
        wait_until(is_heard_again, "a status update")
        assert receiver._received_bytes < 100_000 + 2 * replication.HANDED_OVER_BYTES
        rows = 0
        while rows < 9000:
            rows += sum(it[:1] == b"w" and it[25:26] == b"I" for it in receiver.take(5))
    finally:
        receiver.stop()


def test_lost_connection_is_raised_after_the_last_payload(
    setup: Setup, streaming: ReplicationConnection
) -> None:
    receiver = Receiver(streaming, 0)
    setup.execute("INSERT INTO orders VALUES (1, 0)")
    wait_until(lambda: any(it[25:26] == b"C" for it in receiver._received))
    setup.execute(
        "SELECT pg_terminate_backend(active_pid, 5000) FROM pg_replication_slots"
        " WHERE slot_name = %s",
        setup.slot,
    )
    taken = receiver.take(5)
    assert any(it[25:26] == b"I" for it in taken)
    with pytest.raises(ReplicationLost, match="terminating connection"):
        wait_until(lambda: receiver.take(5) and False)
    receiver.stop()


def test_confirmed_position_moves_the_slot(setup: Setup, streaming: ReplicationConnection) -> None:
    receiver = Receiver(streaming, 0)
    (lsn,) = setup.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
    setup.execute("INSERT INTO orders VALUES (1, 0)")
    wait_until(lambda: any(it[25:26] == b"C" for it in receiver._received))

    def confirmed() -> int:
        query = "SELECT confirmed_flush_lsn - '0/0' FROM pg_replication_slots WHERE slot_name = %s"
        return int(setup.execute(query, setup.slot).fetchone()[0])

    assert confirmed() <= lsn
    receiver.confirm(int(lsn) + 8)
    wait_until(lambda: confirmed() == int(lsn) + 8)
    receiver.stop()


def test_stopped_receiver_leaves_the_slot_free(
    setup: Setup, streaming: ReplicationConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: the server does not have to notice first that the connection is gone."""
    for name in ("RELEASE_SECONDS", "STOP_SECONDS"):
        monkeypatch.setattr(replication, name, PATIENCE_SECONDS)
    receiver = Receiver(streaming, 0)
    setup.execute("INSERT INTO orders SELECT g, 0 FROM generate_series(1, 2000) g")
    receiver.take(5)
    receiver.stop()
    setup.execute("SELECT pg_drop_replication_slot(%s)", setup.slot)


def test_keepalive_comes_on_request(setup: Setup, streaming: ReplicationConnection) -> None:
    receiver = Receiver(streaming, 0)
    receiver.take(1)
    receiver.request_keepalive()
    wait_until(lambda: any(it[:1] == b"k" for it in receiver.take(1)))
    receiver.stop()


def test_waiting_for_a_slot_can_be_given_up(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    connection = ReplicationConnection(setup.url)
    with psycopg.connect(setup.url) as other:
        other.execute("INSERT INTO orders VALUES (1, 0)")

        def give_up() -> None:
            raise TimeoutError

        with pytest.raises(TimeoutError):
            connection.create_slot(setup.slot, give_up)
    connection.close()
    query = "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s"
    wait_until(lambda: not setup.execute(query, setup.slot).fetchall())
