"""A capture beside servers that restart, and tables that change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from millstream.broker.embedded import Broker
from millstream.connect.capture import output
from millstream.connect.capture.capture import Capture
from millstream.connect.capture.settings import CaptureSettings
from tests.connect.capture.conftest import SETTINGS, new_setup
from tests.connect.capture.harness import (
    ROOT,
    TABLE,
    Setup,
    Writer,
    final_rows,
    read_topic,
    wait_until,
)
from tests.peers.postgres import PostgresServer, serve_postgres
from tests.peers.servers import free_port


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    yield from serve_postgres(*SETTINGS)


def test_capture_has_settings_from_python_or_from_a_file() -> None:
    settings = CaptureSettings(name="a", database="", tables=["public.*"])
    assert (
        Capture.of(settings).settings
        == Capture(name="a", database="", tables=["public.*"]).settings
    )


def test_first_errors_are_raised_at_once(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later ones are retried: then the addresses are right."""
    assert "port 1 failed" in setup.failure(database="host=127.0.0.1 port=1 dbname=x user=y")
    monkeypatch.setattr(output, "REACH_SECONDS", 0.3)
    setup.execute(TABLE.format("orders"))
    with pytest.raises(OSError, match=r"127\.0\.0\.1:1"):
        Capture(**setup.settings | {"broker": "127.0.0.1:1"}).run()


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_database_restarts(own_postgres: PostgresServer, broker: Broker, how: str) -> None:
    setup = new_setup(own_postgres, broker.bootstrap_servers)
    setup.execute(TABLE.format("orders"))
    with setup.running() as capture:
        setup.caught_up(capture)
        for number in range(3):
            setup.execute(
                "INSERT INTO orders SELECT %s + g, 0 FROM generate_series(0, 9) g", number * 10
            )
            if number == 1:
                setup.caught_up(capture)
            getattr(own_postgres, how)()
            own_postgres.start()
            setup.connect()
            setup.execute("UPDATE orders SET version = version + 1")
        setup.caught_up(capture)
    setup.check("orders")


def test_database_restarts_under_an_idle_capture(
    own_postgres: PostgresServer, broker: Broker
) -> None:
    """It has committed nothing since its start, and yet its addresses are right."""
    setup = new_setup(own_postgres, broker.bootstrap_servers)
    setup.execute(TABLE.format("orders"))
    with setup.running() as capture:
        setup.caught_up(capture)
    with setup.running(heartbeat_seconds=3600) as capture:
        wait_until(lambda: capture.progress.phase == "streaming", capture=capture)
        assert capture.progress.commits == 0
        own_postgres.stop()
        wait_until(lambda: capture.progress.phase == "retrying", capture=capture)
        own_postgres.start()
        setup.connect()
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        setup.caught_up(capture)
    setup.check("orders")


def test_broker_restarts(postgres: PostgresServer, tmp_path: Path) -> None:
    with Broker.start(tmp_path, port=free_port(), in_process=False) as broker:
        setup = new_setup(postgres, broker.bootstrap_servers)
        setup.execute(TABLE.format("orders"))
        writer = Writer(setup.url, ["orders"], range(50), seed=2)
        with setup.running() as capture:
            setup.caught_up(capture)
            writer.start()
            for _ in range(2):
                before = capture.progress.transactions
                wait_until(lambda: capture.progress.transactions != before, capture=capture)  # noqa: B023
                broker.kill()
                broker.restart()
            writer.stop()
            setup.caught_up(capture)
        setup.check("orders")
        setup.sql.close()


def test_broker_that_is_away_for_longer_than_a_first_error_takes(
    postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running capture tries again and again."""
    with Broker.start(tmp_path, port=free_port(), in_process=False) as broker:
        setup = new_setup(postgres, broker.bootstrap_servers)
        setup.execute(TABLE.format("orders"))
        with setup.running(heartbeat_seconds=60, messages=False) as capture:
            setup.caught_up(capture)
            monkeypatch.setattr(output, "REACH_SECONDS", 0.2)
            broker.kill()
            # The connection to the database is lost, too: the next session finds no broker.
            setup.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_replication")
            setup.execute("INSERT INTO orders VALUES (1, 0)")
            wait_until(lambda: "Check `broker`" in capture.progress.error, capture=capture)
            monkeypatch.undo()
            broker.restart()
            setup.caught_up(capture)
        setup.check("orders")
        setup.close()


def test_deleted_topic_is_created_again(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "MISSING_TOPIC_SECONDS", 0.5)
    setup.execute(TABLE.format("orders"))
    with setup.running() as capture:
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        setup.caught_up(capture)
        admin = AdminClient({"bootstrap.servers": setup.bootstrap})
        for future in admin.delete_topics([f"{setup.name}.public.orders"]).values():
            future.result()
        setup.execute("INSERT INTO orders VALUES (2, 0)")
        setup.caught_up(capture)
    assert list(final_rows(setup.read("orders"))) == ['{"id": 2}']


def test_layout_changes_in_mid_stream(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    with setup.running() as capture:
        setup.caught_up(capture)
        setup.execute("INSERT INTO orders VALUES (1, 0, 'a')")
        setup.execute("ALTER TABLE orders ADD COLUMN price numeric DEFAULT 1.5")
        setup.execute("INSERT INTO orders VALUES (2, 0, 'b', 2.50)")
        setup.execute("ALTER TABLE orders RENAME COLUMN note TO remark")
        setup.execute("ALTER TABLE orders ALTER COLUMN price TYPE text")
        setup.execute(
            "BEGIN; INSERT INTO orders VALUES (3, 0, 'c', 'free');"
            " ALTER TABLE orders DROP COLUMN price; INSERT INTO orders VALUES (4, 0, 'd'); COMMIT"
        )
        setup.execute("CREATE TYPE mood AS ENUM ('good'); ALTER TABLE orders ADD COLUMN mood mood")
        setup.execute("INSERT INTO orders VALUES (5, 0, 'e', 'good')")
        setup.caught_up(capture)
    rows = [it.value["after"] for it in setup.read("orders") if it.value]
    assert rows == [
        {"id": 1, "version": 0, "note": "a"},
        {"id": 2, "version": 0, "note": "b", "price": "2.50"},
        {"id": 3, "version": 0, "remark": "c", "price": "free"},
        {"id": 4, "version": 0, "remark": "d"},
        {"id": 5, "version": 0, "remark": "e", "mood": "good"},
    ]


def test_type_changes_in_mid_stream(setup: Setup) -> None:
    """No message announces it: the next value has more attributes than the type is known to."""
    setup.execute("CREATE TYPE pair AS (a int, b text)")
    setup.execute("CREATE TABLE orders (id int PRIMARY KEY, pair pair)")
    with setup.running() as capture:
        setup.caught_up(capture)
        setup.execute("INSERT INTO orders VALUES (1, ROW(1, 'x'))")
        setup.caught_up(capture)
        setup.execute("ALTER TYPE pair ADD ATTRIBUTE c bool")
        setup.execute("INSERT INTO orders VALUES (2, ROW(2, 'y', true)), (3, ROW(3, 'z', false))")
        setup.caught_up(capture)
    pairs = [it.value["after"]["pair"] for it in setup.read("orders") if it.value]
    assert pairs == [
        {"a": 1, "b": "x"},
        {"a": 2, "b": "y", "c": True},
        {"a": 3, "b": "z", "c": False},
    ]


def test_primary_key_that_has_changed_since_is_not_used_for_earlier_rows(setup: Setup) -> None:
    """The catalogue has the new key when the capture reads the old rows."""
    setup.execute("CREATE TABLE orders (id int, part int, CONSTRAINT pk PRIMARY KEY (id))")
    with setup.running() as capture:
        setup.caught_up(capture)
    setup.execute("INSERT INTO orders VALUES (1, 1)")
    for key in ("id, part", "part"):
        setup.execute(
            f"BEGIN; ALTER TABLE orders DROP CONSTRAINT pk;"
            f" ALTER TABLE orders ADD CONSTRAINT pk PRIMARY KEY ({key}); COMMIT"
        )
        setup.execute("UPDATE orders SET id = id + 1, part = part + 1")
        setup.execute("DELETE FROM orders; INSERT INTO orders VALUES (1, 1)")
    with setup.running() as capture:
        setup.caught_up(capture)
    both = {"id": 1, "part": 1}, {"id": 2, "part": 2}
    assert [it.key for it in setup.read("orders")] == [
        {"id": 1},
        *(both[0], both[0], both[1], both[1], both[1], both[0]),
        *({"part": 1}, {"part": 1}, {"part": 2}, {"part": 2}, {"part": 2}, {"part": 1}),
    ]


def test_key_changes_truncates_and_partitions(setup: Setup) -> None:
    setup.execute(TABLE.format("orders") + " PARTITION BY RANGE (id)")
    for number in range(2):
        setup.execute(
            f"CREATE TABLE part{number} PARTITION OF orders FOR VALUES"
            f" FROM ({number * 100}) TO ({number * 100 + 100})"
        )
    setup.execute("INSERT INTO orders VALUES (1, 0), (150, 0)")
    with setup.running() as capture:
        setup.caught_up(capture)
        setup.execute("UPDATE orders SET id = 2 WHERE id = 1")
        setup.execute("UPDATE orders SET id = 160 WHERE id = 2")
        setup.caught_up(capture)
        assert set(final_rows(setup.read("orders"))) == set(setup.rows("orders"))
        setup.execute("TRUNCATE orders")
        setup.execute("INSERT INTO orders VALUES (7, 0)")
        setup.caught_up(capture)
    assert final_rows(setup.read("orders")) == setup.rows("orders")
    assert [it.op for it in setup.read("orders")[-2:]] == ["t", "c"]
    assert setup.read("part0") == []


@pytest.mark.parametrize("heartbeat_topic", [False, True])
def test_idle_capture_moves_its_slot(setup: Setup, heartbeat_topic: bool) -> None:
    """Other tables fill the log; the slot must not keep it."""
    setup.execute(TABLE.format("orders"))
    setup.execute(TABLE.format("other"))
    lag = (
        "SELECT pg_current_wal_lsn() - confirmed_flush_lsn FROM pg_replication_slots"
        " WHERE slot_name = %s"
    )
    with setup.running(
        tables=["public.orders"], heartbeat_topic=heartbeat_topic, heartbeat_seconds=0.2
    ) as capture:
        setup.caught_up(capture)
        setup.execute(
            "INSERT INTO other SELECT g, 0, repeat('x', 100) FROM generate_series(1, 5000) g"
        )
        wait_until(lambda: setup.execute(lag, setup.slot).fetchone()[0] < 10_000, capture=capture)
        wait_until(lambda: capture.progress.slot is not None, capture=capture)
        assert capture.progress.slot is not None
        assert capture.progress.slot.wal_status == "reserved"
    beats = read_topic(setup.bootstrap, f"__debezium-heartbeat.{setup.name}")
    assert bool(beats) == heartbeat_topic


def test_transactions_are_written_whole(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    with setup.running(transactions=True, atomic=True, slice_bytes=2000) as capture:
        setup.caught_up(capture)
        setup.execute("INSERT INTO orders SELECT g, 0 FROM generate_series(1, 500) g")
        setup.execute("SELECT pg_logical_emit_message(true, 'audit', 'who')")
        setup.caught_up(capture)
    transactions = read_topic(setup.bootstrap, f"{setup.name}.transaction")
    assert [it.value["status"] for it in transactions if it.value][:2] == ["BEGIN", "END"]
    end = transactions[1].value
    assert end is not None
    assert end["event_count"] == 500
    ids = {it.value["transaction"]["id"] for it in setup.read("orders") if it.value}
    assert ids == {end["id"]}
    messages = read_topic(setup.bootstrap, f"{setup.name}.message")
    assert [it.key["prefix"] for it in messages].count("audit") == 1


def test_example_shows_the_changes(postgres: PostgresServer) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "capture.py"],
        env={**os.environ, "DATABASE_URL": postgres.new_database()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["r 1 tea", "r 2 mug", "u 1 green tea", "d 2 None"]
