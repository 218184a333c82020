"""Captures that run, die and continue, between a real database and a real broker."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millstream.connect.capture import replication
from millstream.connect.capture.output import CaptureFenced, Output
from millstream.connect.capture.stream import Slicer
from tests.connect.capture.conftest import new_setup
from tests.connect.capture.driver import NAMES
from tests.connect.capture.harness import TABLE, Setup, Writer, end, read_topic, wait_until
from tests.peers.kafka import start_kafka
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.postgres import PostgresServer


def test_snapshot_and_stream_meet_without_a_gap(setup: Setup) -> None:
    """Writers go on all the time: before the slot, while tables are copied, and after."""
    for table in ("orders", "items"):
        setup.execute(TABLE.format(table))
        setup.execute(f"INSERT INTO {table} SELECT g, 0, 'old' FROM generate_series(1, 3000) g")
    writers = [
        Writer(setup.url, ["orders", "items"], range(number, 3000, 3), seed=number)
        for number in range(3)
    ]
    for writer in writers:
        writer.start()
    wait_until(lambda: all(writer.transactions > 5 for writer in writers))
    with setup.running(chunk_rows=200) as capture:
        wait_until(lambda: capture.progress.transactions > 200, capture=capture)
        for writer in writers:
            writer.stop()
        setup.caught_up(capture)
    setup.check("orders", "items")
    assert {change.op for change in setup.read("orders")} >= {"r", "c", "u", "d", "tombstone"}


@pytest.mark.java
@pytest.mark.slow
def test_apache_kafka_gets_each_change_once(postgres: PostgresServer, tmp_path: Path) -> None:
    server = start_kafka(tmp_path, {})
    try:
        setup = new_setup(postgres, server.bootstrap)
        setup.execute(TABLE.format("orders"))
        setup.execute("INSERT INTO orders SELECT g, 0, '' FROM generate_series(1, 500) g")
        writer = Writer(setup.url, ["orders"], range(600), seed=3)
        writer.start()
        for point in ("after commit:3", "before commit:3", "after confirm:3"):
            assert setup.spawn(point, chunk_rows=100).wait(PATIENCE_SECONDS) == -9
        with setup.running(chunk_rows=100) as capture:
            wait_until(lambda: capture.progress.transactions > 20, capture=capture)
            writer.stop()
            setup.caught_up(capture)
        setup.check("orders")
        setup.close()
    finally:
        server.stop()


@pytest.mark.parametrize("point", NAMES)
def test_capture_killed_at_a_point_continues(setup: Setup, point: str) -> None:
    """It dies in the snapshot or in the stream, while writers go on."""
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders SELECT g, 0, 'old' FROM generate_series(1, 300) g")
    writer = Writer(setup.url, ["orders"], range(600), seed=1)
    writer.start()
    counts = [1, 5] if point.endswith(("send", "confirm")) else [1]
    if point.endswith("commit"):
        counts = [1, 5, 14]  # the last one is in the stream
    try:
        for count in counts:
            process = setup.spawn(f"{point}:{count}", chunk_rows=50)
            assert process.wait(PATIENCE_SECONDS) == -9
        with setup.running(chunk_rows=50) as capture:
            wait_until(lambda: capture.progress.transactions > 20, capture=capture)
            writer.stop()
            setup.caught_up(capture)
    finally:
        writer._stopping.set()
    setup.check("orders")


def test_copy_in_one_transaction_survives_a_kill(setup: Setup) -> None:
    """Rows of COPY share their LSNs: only their number in the transaction identifies them."""
    setup.execute(TABLE.format("orders"))
    # A slice is a twentieth of the transaction.
    changes = {"slice_bytes": 5_000, "transactions": True}
    with setup.running(**changes) as capture:
        setup.caught_up(capture)
    with setup.sql.cursor().copy("COPY orders FROM STDIN") as copy:
        for number in range(2000):
            copy.write_row((number, 0, "x" * 20))
    process = setup.spawn("before commit:3", **changes)
    assert process.wait(PATIENCE_SECONDS) == -9
    process = setup.spawn("after commit:2", **changes)
    assert process.wait(PATIENCE_SECONDS) == -9
    written = len(setup.read("orders"))
    assert 0 < written < 2000
    with setup.running(**changes) as capture:
        setup.caught_up(capture)
    keys = [change.key["id"] for change in setup.read("orders")]
    assert keys == list(range(2000))
    boundaries = read_topic(setup.bootstrap, f"{setup.name}.transaction")
    assert [it.value["status"] for it in boundaries if it.value] == ["BEGIN", "END"]


def test_atomic_transaction_is_invisible_until_it_is_complete(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    changes = {"slice_bytes": 5_000, "atomic": True}
    with setup.running(**changes) as capture:
        setup.caught_up(capture)
    setup.execute("INSERT INTO orders SELECT g, 0, repeat('x', 20) FROM generate_series(1, 2000) g")
    assert setup.spawn("after send:9", **changes).wait(PATIENCE_SECONDS) == -9
    assert setup.read("orders") == []
    with setup.running(**changes) as capture:
        setup.caught_up(capture)
    assert [it.key["id"] for it in setup.read("orders")] == list(range(1, 2001))


@pytest.mark.parametrize("atomic", [False, True])
def test_large_transaction_is_held_slice_by_slice(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    """What is held at once depends on the limits, and not on the size of the transaction."""
    monkeypatch.setattr(replication, "RECEIVED_BYTES_MAX", 100_000)
    monkeypatch.setattr(replication, "HANDED_OVER_BYTES", 20_000)
    pending_bytes, written_rows = [0], [0]
    add, write = Slicer.add, Output.write

    def watched_add(slicer: Slicer, payloads: list[bytes], in_transaction: bool) -> Any:
        yield from add(slicer, payloads, in_transaction)
        pending_bytes.append(slicer._pending_bytes)

    def watched_write(output: Output, topic: str, columns: Any, without: Any = ()) -> None:
        written_rows.append(columns.row_count)
        write(output, topic, columns, without)

    monkeypatch.setattr(Slicer, "add", watched_add)
    monkeypatch.setattr(Output, "write", watched_write)
    setup.execute(TABLE.format("orders"))
    with setup.running(slice_bytes=50_000, atomic=atomic) as capture:
        setup.caught_up(capture)
        rows = "SELECT g, 0, repeat('x', 100) FROM generate_series"
        with setup.sql.transaction():
            setup.execute(f"INSERT INTO orders {rows}(1, 10000) g")
            with contextlib.suppress(psycopg.errors.DivisionByZero), setup.sql.transaction():
                setup.execute(f"INSERT INTO orders {rows}(10001, 20000) g")
                setup.execute("SELECT 1 / 0")
        setup.caught_up(capture)
    assert [it.key["id"] for it in setup.read("orders")] == list(range(1, 10_001))
    assert max(pending_bytes) < 50_000 + 100_000 + 2 * 20_000
    assert max(written_rows) <= 2 * 50_000 // 100  # a row has more than 100 bytes
    assert len(written_rows) > 20


def test_a_second_process_takes_over_and_the_first_one_stops(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    first = setup.running()
    with contextlib.suppress(CaptureFenced), first as capture:
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        setup.caught_up(capture)
        with setup.running() as second:
            setup.execute("INSERT INTO orders VALUES (2, 0)")
            setup.caught_up(second)
            wait_until(lambda: not capture.is_alive())  # type: ignore[attr-defined]
        assert "another process has taken over" in str(capture.error)  # type: ignore[attr-defined]
    setup.check("orders")


def test_a_paused_process_cannot_write_after_it_was_replaced(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    process = setup.spawn()
    try:
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        wait_until(lambda: setup.read("orders"))
        process.send_signal(signal.SIGSTOP)
        setup.execute("INSERT INTO orders VALUES (2, 0)")
        with setup.running() as capture:
            setup.caught_up(capture)
            process.send_signal(signal.SIGCONT)
            assert process.wait(PATIENCE_SECONDS) == 1
            setup.execute("INSERT INTO orders VALUES (3, 0)")
            setup.caught_up(capture)
    finally:
        end(process)
    setup.check("orders")
