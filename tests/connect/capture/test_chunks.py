"""Tables that are copied beside the stream, under writers and in unlucky moments."""

from __future__ import annotations

import json
import threading

import psycopg
import pytest

from tests.connect.capture.harness import TABLE, Setup, Writer, wait_until
from tests.peers.patience import PATIENCE_SECONDS


def request(setup: Setup, *tables: str, replace: bool = False) -> None:
    """As `millstream capture resnapshot` does it."""
    content = json.dumps({"resnapshot": [f"public.{it}" for it in tables], "replace": replace})
    setup.execute("SET synchronous_commit = local")
    setup.execute(
        "SELECT pg_logical_emit_message(true, %s, %s)", f"millstream.capture.{setup.name}", content
    )


def copied(setup: Setup, table: str) -> int:
    return sum(it.snapshot == "incremental" for it in setup.read(table))


@pytest.mark.slow
def test_new_snapshot_beside_the_stream_is_exact(setup: Setup) -> None:
    """Rows of the snapshot are never older than the changes before them."""
    for table in ("orders", "items"):
        setup.execute(TABLE.format(table))
        setup.execute(f"INSERT INTO {table} SELECT g, 0, '' FROM generate_series(1, 500) g")
    writers = [
        Writer(setup.url, ["orders", "items"], range(number, 600, 3), seed=number)
        for number in range(3)
    ]
    with setup.running(chunk_rows=40) as capture:
        setup.caught_up(capture)
        for writer in writers:
            writer.start()
        for replace in (False, True, False):
            request(setup, "orders", "items", replace=replace)
            setup.caught_up(capture)
        for writer in writers:
            writer.stop()
        setup.caught_up(capture)
    setup.check("orders", "items")
    assert copied(setup, "orders") > 500
    assert any(it.op == "t" for it in setup.read("orders"))


def test_snapshot_does_not_end_on_a_value_older_than_the_stream(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    """A commit that waits for a standby is in the log before other sessions see it."""
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders VALUES (1, 0, 'old')")
    with setup.running() as capture:
        setup.caught_up(capture)
        setup.execute("ALTER SYSTEM SET synchronous_standby_names = 'absent'")
        setup.execute("SELECT pg_reload_conf()")
        writer = threading.Thread(target=update_and_wait, args=(setup.url,), daemon=True)
        try:
            wait_until(lambda: commits_wait(setup))
            writer.start()
            wait_until(lambda: setup.read("orders")[-1].op == "u")
            assert setup.rows("orders")['{"id": 1}']["version"] == 0  # streamed, and invisible
            request(setup, "orders")
            wait_until(lambda: "copying public.orders waits" in caplog.text, capture=capture)
        finally:
            setup.execute("ALTER SYSTEM RESET synchronous_standby_names")
            setup.execute("SELECT pg_reload_conf()")
        writer.join(PATIENCE_SECONDS)
        setup.caught_up(capture)
    setup.check("orders")
    assert [it.op for it in setup.read("orders")] == ["r", "u", "r"]


def commits_wait(setup: Setup) -> bool:
    """Whether a commit waits for a standby: some time after the setting is in force for sessions,
    another process of the server turns that on."""
    waiting = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity"
    waiting += " WHERE wait_event = 'SyncRep' AND pid = %s"
    with psycopg.connect(setup.url, autocommit=True) as probe:
        commit = "SELECT pg_logical_emit_message(true, 'probe', '')"
        thread = threading.Thread(target=probe.execute, args=(commit,))
        thread.start()
        found = False
        while thread.is_alive():
            found = bool(setup.execute(waiting, probe.info.backend_pid).fetchall()) or found
            thread.join(0.01)
    return found


def update_and_wait(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE orders SET version = 1, note = 'new'")


def test_replacing_snapshot_begins_with_a_truncate(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders SELECT g, 0, '' FROM generate_series(1, 5) g")
    with setup.running(chunk_rows=2) as capture:
        setup.caught_up(capture)
        request(setup, "orders", "unknown", replace=True)
        setup.caught_up(capture)
    assert [it.op for it in setup.read("orders")] == ["r"] * 5 + ["t"] + ["r"] * 5
    setup.check("orders")


def test_row_that_changes_while_it_is_read_is_not_lost_in_a_truncate(setup: Setup) -> None:
    """Its change is streamed before the truncate, and the chunk has an older version of it."""
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders SELECT g, 0, '' FROM generate_series(1, 5) g")
    waits = "SELECT 1 FROM pg_locks WHERE relation = 'orders'::regclass AND NOT granted"
    with setup.running() as capture:
        setup.caught_up(capture)
        with psycopg.connect(setup.url) as other:
            other.execute("LOCK TABLE orders")
            other.execute("UPDATE orders SET version = 1 WHERE id = 1")
            request(setup, "orders", replace=True)
            wait_until(lambda: setup.execute(waits).fetchall(), capture=capture)
        setup.caught_up(capture)
    setup.check("orders")
    assert [it.op for it in setup.read("orders")] == ["r"] * 5 + ["u", "t"] + ["r"] * 5


def test_killed_new_snapshot_goes_on_with_the_next_chunk(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders SELECT g, 0, '' FROM generate_series(1, 100) g")
    with setup.running(chunk_rows=10) as capture:
        setup.caught_up(capture)
    request(setup, "orders")
    process = setup.spawn("after commit:5", chunk_rows=10)
    assert process.wait(PATIENCE_SECONDS) == -9
    assert 0 < copied(setup, "orders") < 100
    with setup.running(chunk_rows=10) as capture:
        setup.caught_up(capture)
    assert copied(setup, "orders") == 100
    setup.check("orders")


NEW_KEYS = {
    "other column": "ADD PRIMARY KEY (code)",
    "wider": "ADD PRIMARY KEY (id, code)",
    "other order": 'ADD PRIMARY KEY (id), ALTER COLUMN id TYPE text COLLATE "C"',
    "none": "REPLICA IDENTITY FULL",
}


@pytest.mark.parametrize("new_key", NEW_KEYS)
def test_copy_starts_over_if_the_key_changes(setup: Setup, new_key: str) -> None:
    """The last key that was copied says nothing about the order of another key."""
    is_text = new_key == "other order"
    kind = 'text COLLATE "en-x-icu"' if is_text else "int"
    key = "CASE WHEN g > 100 THEN 'B' ELSE 'a' END || 1000 + g" if is_text else "1000 + g"
    setup.execute(f"CREATE TABLE orders (id {kind} PRIMARY KEY, code int NOT NULL)")
    setup.execute(f"INSERT INTO orders SELECT {key}, g FROM generate_series(1, 200) g")
    with setup.running(chunk_rows=10) as capture:
        setup.caught_up(capture)
    request(setup, "orders", replace=True)
    assert setup.spawn("after commit:5", chunk_rows=10).wait(PATIENCE_SECONDS) == -9
    assert 0 < copied(setup, "orders") < 200
    setup.execute(f"ALTER TABLE orders DROP CONSTRAINT orders_pkey, {NEW_KEYS[new_key]}")
    with setup.running(chunk_rows=10) as capture:
        setup.caught_up(capture)
    changes = setup.read("orders")
    last_truncate = max(at for at, it in enumerate(changes) if it.op == "t")
    codes = [it.value["after"]["code"] for it in changes[last_truncate + 1 :] if it.value]
    assert sorted(codes) == list(range(1, 201))


def test_table_that_is_created_later_is_copied(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    with setup.running() as capture:
        setup.caught_up(capture)
        setup.execute(TABLE.format("items"))
        setup.execute("INSERT INTO items VALUES (1, 0, 'before it was found')")
        wait_until(lambda: copied(setup, "items") == 1, capture=capture)
        setup.execute("UPDATE items SET version = 1")
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        setup.caught_up(capture)
    setup.check("items", "orders")


def test_table_that_is_created_while_others_are_written_is_copied(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    writer = Writer(setup.url, ["orders"], range(100), seed=1)
    with setup.running() as capture:
        setup.caught_up(capture)
        writer.start()
        setup.execute(TABLE.format("items"))
        setup.execute("INSERT INTO items VALUES (1, 0)")
        try:
            wait_until(lambda: copied(setup, "items") == 1, capture=capture)
        finally:
            writer.stop()
        setup.caught_up(capture)
    setup.check("items", "orders")


def test_table_written_while_it_is_added_is_complete(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    """A transaction that began before the table was published is not streamed."""
    setup.execute(TABLE.format("orders"))
    setup.execute(TABLE.format("items"))
    with setup.running(tables=["public.orders"]) as capture:
        setup.caught_up(capture)
    with psycopg.connect(setup.url) as other:
        other.execute("INSERT INTO items VALUES (1, 0, 'open')")
        with setup.running() as capture:
            query = "SELECT 1 FROM pg_publication_tables WHERE tablename = 'items'"
            wait_until(lambda: setup.execute(query).fetchall(), capture=capture)
            # Without the wait, the table would be copied before this transaction ends.
            caplog.set_level("INFO", "millstream.capture")
            wait_until(
                lambda: "new tables wait for" in caplog.text or "items is copied" in caplog.text,
                capture=capture,
            )
            other.commit()
            setup.caught_up(capture)
    setup.check("items")


def test_recreated_table_replaces_the_old_one(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders VALUES (1, 0), (2, 0)")
    with setup.running() as capture:
        setup.caught_up(capture)
        setup.execute("DROP TABLE orders")
        setup.execute(TABLE.format("orders") + " PARTITION BY HASH (id)")
        setup.execute(
            "CREATE TABLE part PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
        )
        setup.execute("INSERT INTO orders VALUES (2, 7, 'new')")
        wait_until(lambda: copied(setup, "orders") == 1, capture=capture)
        setup.execute("UPDATE orders SET version = 8")
        setup.caught_up(capture)
    changes = setup.read("orders")
    assert [it.op for it in changes] == ["r", "r", "t", "r", "u"]
    setup.check("orders")


def test_keyless_table_is_copied_as_a_whole(setup: Setup) -> None:
    setup.execute("CREATE TABLE keyless (n int)")
    setup.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    setup.execute("INSERT INTO keyless SELECT g FROM generate_series(1, 30) g")
    with setup.running(chunk_rows=10) as capture:
        setup.caught_up(capture)
        request(setup, "keyless")
        setup.caught_up(capture)
    changes = setup.read("keyless")
    assert [it.op for it in changes] == ["r"] * 30 + ["t"] + ["r"] * 30


def test_keyless_table_is_complete_although_it_is_written_meanwhile(setup: Setup) -> None:
    """Without keys, rows cannot be dropped one by one: the whole table is read again."""
    setup.execute("CREATE TABLE keyless (n int)")
    setup.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    setup.execute("INSERT INTO keyless SELECT g FROM generate_series(1, 3000) g")
    stopping = threading.Event()

    def write() -> None:
        with psycopg.connect(setup.url, autocommit=True) as connection:
            number = 10_000
            while not stopping.wait(0.002):
                number += 1
                connection.execute("INSERT INTO keyless VALUES (%s)", (number,))
                connection.execute("DELETE FROM keyless WHERE n = %s", (number - 9_000,))

    writer = threading.Thread(target=write)
    with setup.running() as capture:
        setup.caught_up(capture)
        writer.start()
        try:
            for _ in range(3):
                request(setup, "keyless")
                before = capture.progress.commits
                wait_until(lambda: capture.progress.commits > before + 20, capture=capture)  # noqa: B023
        finally:
            stopping.set()
            writer.join()
        setup.caught_up(capture)
    rows: list[int] = []
    for change in setup.read("keyless"):
        assert change.value is not None
        if change.op == "t":
            rows.clear()
        elif change.op == "d":
            rows.remove(change.value["before"]["n"])
        else:
            rows.append(change.value["after"]["n"])
    assert sorted(rows) == [n for (n,) in setup.execute("SELECT n FROM keyless ORDER BY n")]
    assert any(it.op == "t" for it in setup.read("keyless"))


def test_column_dropped_while_a_table_is_copied(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders SELECT g, 0, '' FROM generate_series(1, 200) g")
    with setup.running(chunk_rows=10) as capture:
        setup.caught_up(capture)
        request(setup, "orders")
        setup.execute("ALTER TABLE orders DROP COLUMN note")
        setup.caught_up(capture)
        request(setup, "orders")
        setup.caught_up(capture)
    setup.check("orders")
