"""Captures that run, die and continue, between a real database and a real broker."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from millstream.client.cluster import Cluster
from millstream.client.producing import RawProducer
from millstream.client.transactions import open_transactions
from millstream.connect.capture import output, replication
from millstream.connect.capture.output import CaptureFenced, Output, Owner
from millstream.connect.capture.source import Source
from millstream.connect.capture.stream import Slicer
from tests.connect.capture.conftest import new_setup
from tests.connect.capture.driver import NAMES
from tests.connect.capture.harness import TABLE, Setup, Writer, end, read_topic, wait_until
from tests.peers.impatient import start_impatient
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


# The end of one step is the beginning of the next: one of both runs always.
CHOSEN = (
    "after open",
    "after state",
    "after slot",
    "before confirm",
    "after send",
    "before commit",
)
POINTS = [it if it in CHOSEN else pytest.param(it, marks=pytest.mark.slow) for it in NAMES]


@pytest.mark.slow_with("after send", "after slot", "after state")
@pytest.mark.parametrize("point", POINTS)
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


def test_capture_that_was_taken_over_says_so_also_if_its_slot_is_gone(setup: Setup) -> None:
    """`millstream capture remove` and `resnapshot --new-slot` take over before they drop it."""
    setup.execute(TABLE.format("orders"))
    with contextlib.suppress(CaptureFenced), setup.running(heartbeat_seconds=3600) as capture:
        setup.caught_up(capture)
        remover = Output(capture.settings)
        remover.open(Owner())
        with contextlib.closing(Source(capture.settings)) as source:
            source.drop_slot()
        wait_until(lambda: not capture.is_alive())  # type: ignore[attr-defined]
        remover.close()
    assert "another process has taken over" in str(capture.error)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("is_reached", "message"),
    [(True, "the stored position is of database"), (False, "port 1 failed")],
)
def test_a_second_process_with_a_wrong_database_leaves_the_first_one_alone(
    setup: Setup, postgres: PostgresServer, is_reached: bool, message: str
) -> None:
    setup.execute(TABLE.format("orders"))
    wrong = postgres.new_database() if is_reached else "host=127.0.0.1 port=1 dbname=x user=y"
    if is_reached:
        with psycopg.connect(wrong, autocommit=True) as other:
            other.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with setup.running() as capture:
        setup.caught_up(capture)
        assert message in setup.failure(database=wrong)
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        wait_until(lambda: setup.read("orders"), capture=capture)
        assert capture.progress.retries == 0
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


@pytest.fixture(
    params=["millstream", pytest.param("kafka", marks=[pytest.mark.java, pytest.mark.slow])]
)
def impatient(
    request: pytest.FixtureRequest,
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Setup]:
    """A capture whose transactions time out soon."""
    monkeypatch.setattr(output, "TRANSACTION_TIMEOUT_MS", 1000)
    server = start_impatient(request.param, tmp_path)
    try:
        setup = new_setup(postgres, server.bootstrap)
        setup.settings["heartbeat_seconds"] = 3600.0  # the next commit is that of the next row
        setup.execute(TABLE.format("orders"))
        yield setup
        setup.close()
    finally:
        server.stop()


def hold_next_commit(
    monkeypatch: pytest.MonkeyPatch, setup: Setup, until: threading.Event
) -> threading.Event:
    """The next commit of any capture waits for `until`, and for the end of its transaction by the
    broker. Returns an event: that it waits."""
    holding, original = threading.Event(), RawProducer.end

    def end(producer: RawProducer, commit: bool) -> None:
        if not holding.is_set():
            producer.flush()
            holding.set()
            assert until.wait(PATIENCE_SECONDS)
            assert producer.transaction is not None
            with Cluster(setup.bootstrap, client_id="test") as cluster:
                prefix = producer.transaction.transactional_id
                wait_until(lambda: not open_transactions(cluster, prefix))
        original(producer, commit)

    monkeypatch.setattr(RawProducer, "end", end)
    return holding


def test_capture_whose_transaction_timed_out_goes_on(
    impatient: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    with impatient.running() as capture:
        impatient.execute("INSERT INTO orders VALUES (1, 0)")
        impatient.caught_up(capture)
        at_once = threading.Event()
        at_once.set()
        for key in (2, 3):
            with monkeypatch.context() as patch:
                holding = hold_next_commit(patch, impatient, at_once)
                impatient.execute(f"INSERT INTO orders VALUES ({key}, 0)")
                impatient.caught_up(capture)
                assert holding.is_set()
    assert [it.key["id"] for it in impatient.read("orders")] == [1, 2, 3]


@pytest.mark.slow
def test_capture_whose_transaction_timed_out_stops_if_another_has_taken_over(
    impatient: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = impatient.running()
    with contextlib.suppress(CaptureFenced), first as capture:
        impatient.execute("INSERT INTO orders VALUES (1, 0)")
        impatient.caught_up(capture)
        going_on = threading.Event()
        holding = hold_next_commit(monkeypatch, impatient, going_on)
        impatient.execute("INSERT INTO orders VALUES (2, 0)")
        wait_until(holding.is_set)
        with impatient.running() as second:
            impatient.caught_up(second)
            going_on.set()
            wait_until(lambda: not capture.is_alive())  # type: ignore[attr-defined]
            impatient.execute("INSERT INTO orders VALUES (3, 0)")
            impatient.caught_up(second)
        assert "another process has taken over" in str(capture.error)  # type: ignore[attr-defined]
    assert [it.key["id"] for it in impatient.read("orders")] == [1, 2, 3]
