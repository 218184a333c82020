"""Tables that leave a capture and return: nothing that changed meanwhile is missing afterwards."""

from __future__ import annotations

import json

import pytest

from millstream.connect.capture.capture import Capture
from millstream.connect.capture.control import start_over
from millstream.connect.capture.position import CaptureState
from millstream.connect.capture.settings import CaptureSettings
from tests.connect.capture.harness import TABLE, Setup, final_rows, wait_until
from tests.connect.capture.test_chunks import copied, request
from tests.peers.patience import PATIENCE_SECONDS

TABLES = {"tables": ["public.orders", "public.items"]}
# How a table leaves, its name while it is away, and how it returns.
WAYS = {
    "renamed": ("ALTER TABLE items RENAME TO old", "old", "ALTER TABLE old RENAME TO items"),
    "moved": (
        "ALTER TABLE items SET SCHEMA archive",
        "archive.items",
        "ALTER TABLE archive.items SET SCHEMA public",
    ),
    "unpublished": (
        "ALTER PUBLICATION {} DROP TABLE items",
        "items",
        "ALTER PUBLICATION {} ADD TABLE items",
    ),
    "filtered": (
        "ALTER PUBLICATION {} SET TABLE orders, items WHERE (id > 1), other",
        "items",
        "ALTER PUBLICATION {} SET TABLE orders, items, other",
    ),
    "swapped": (
        "ALTER TABLE items RENAME TO old; ALTER TABLE other RENAME TO items",
        "items",
        "ALTER TABLE items RENAME TO other; ALTER TABLE old RENAME TO items",
    ),
}


def create(setup: Setup) -> None:
    for table in ("orders", "items", "other"):
        setup.execute(TABLE.format(table))
        setup.execute(f"INSERT INTO {table} VALUES (1, 0), (2, 0)")
    setup.execute("ALTER TABLE other REPLICA IDENTITY FULL")
    setup.execute("CREATE SCHEMA archive")


def change(setup: Setup, table: str) -> None:
    setup.execute(f"UPDATE {table} SET version = 1 WHERE id = 1")
    setup.execute(f"DELETE FROM {table} WHERE id = 2")
    setup.execute(f"INSERT INTO {table} VALUES (3, 0)")


def wait_until_copied(setup: Setup, capture: Capture) -> None:
    wait_until(lambda: copied(setup, "items"), "a new copy", capture=capture)
    setup.caught_up(capture)


def check_copied_again(setup: Setup) -> None:
    changes = setup.read("items")
    assert any(it.op == "t" for it in changes)
    assert final_rows(changes) == setup.rows("items")
    assert "t" not in {it.op for it in setup.read("orders")}
    setup.check("orders")


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped"])
@pytest.mark.parametrize("way", WAYS)
def test_table_that_was_away_is_copied_again(setup: Setup, way: str, is_running: bool) -> None:
    create(setup)
    # Published before, since the capture publishes only what it captures.
    publication = f"millstream_{setup.name}"
    setup.execute(f"CREATE PUBLICATION {publication} FOR TABLE orders, items, other")
    leave, name, back = (it.format(publication) for it in WAYS[way])

    def be_away() -> None:
        setup.execute(leave)
        change(setup, name)
        setup.execute(back)

    with setup.running(**TABLES) as capture:
        setup.caught_up(capture)
        if is_running:
            be_away()
            wait_until_copied(setup, capture)
    if not is_running:
        be_away()
    with setup.running(**TABLES) as capture:
        wait_until_copied(setup, capture)
        setup.execute("UPDATE items SET version = version + 1")
        setup.execute("UPDATE orders SET version = 1")
        setup.caught_up(capture)
    check_copied_again(setup)


def test_table_that_is_removed_from_the_settings_for_a_while_is_copied_again(setup: Setup) -> None:
    create(setup)
    with setup.running(**TABLES) as capture:
        setup.caught_up(capture)
    with setup.running(tables=["public.orders"]) as capture:
        change(setup, "items")
        setup.caught_up(capture)
        assert capture.progress.state is not None
        assert capture.progress.state.tables["public.items"].is_left
    with setup.running(**TABLES) as capture:
        wait_until_copied(setup, capture)
    check_copied_again(setup)


def test_table_that_the_capture_publishes_again_is_copied_again(setup: Setup) -> None:
    create(setup)
    with setup.running(**TABLES) as capture:
        setup.caught_up(capture)
        setup.execute(f"ALTER PUBLICATION millstream_{setup.name} DROP TABLE items")
        change(setup, "items")
        wait_until_copied(setup, capture)
    check_copied_again(setup)


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped"])
def test_table_that_was_away_from_a_published_schema_is_copied_again(
    setup: Setup, is_running: bool
) -> None:
    """Its changes are not sent at all meanwhile."""
    create(setup)
    setup.settings |= TABLES | {"manage_publication": False}
    setup.execute(f"CREATE PUBLICATION millstream_{setup.name} FOR TABLES IN SCHEMA public")
    leave, name, back = WAYS["moved"]

    def be_away() -> None:
        setup.execute(leave)
        change(setup, name)
        setup.execute(back)

    with setup.running() as capture:
        setup.caught_up(capture)
        if is_running:
            be_away()
            wait_until_copied(setup, capture)
    if not is_running:
        be_away()
    with setup.running() as capture:
        wait_until_copied(setup, capture)
    check_copied_again(setup)


def test_table_that_was_renamed_without_changes_is_not_copied_again(setup: Setup) -> None:
    create(setup)
    with setup.running(**TABLES) as capture:
        setup.caught_up(capture)
    leave, _, back = WAYS["renamed"]
    setup.execute(leave)
    setup.execute(back)
    with setup.running(**TABLES) as capture:
        setup.execute("UPDATE items SET version = 1")
        setup.caught_up(capture)
        state = capture.progress.state
    assert state is not None
    assert state.tables["public.items"].is_done
    assert "t" not in {it.op for it in setup.read("items")}
    setup.check("items")


def test_table_that_leaves_while_it_is_copied_is_copied_again(setup: Setup) -> None:
    create(setup)
    setup.execute("INSERT INTO items SELECT g, 0 FROM generate_series(10, 200) g")
    with setup.running(**TABLES, chunk_rows=10) as capture:
        setup.caught_up(capture)
    request(setup, "items")
    process = setup.spawn("after commit:5", **TABLES, chunk_rows=10)
    assert process.wait(PATIENCE_SECONDS) == -9
    assert 0 < copied(setup, "items") < 193
    leave, name, back = WAYS["renamed"]
    setup.execute(leave)
    change(setup, name)
    setup.execute(back)
    with setup.running(**TABLES, chunk_rows=10) as capture:
        wait_until(lambda: any(it.op == "t" for it in setup.read("items")), capture=capture)
        setup.caught_up(capture)
    check_copied_again(setup)


def test_plain_snapshot_of_a_table_that_was_away_begins_with_a_truncate(setup: Setup) -> None:
    create(setup)
    changes = TABLES | {"heartbeat_seconds": 3600.0}  # only the request is there to find it
    with setup.running(**changes) as capture:
        setup.caught_up(capture)
        leave, name, back = WAYS["renamed"]
        setup.execute(leave)
        change(setup, name)
        setup.execute(back)
        request(setup, "items")
        wait_until_copied(setup, capture)
    check_copied_again(setup)


def test_new_start_without_a_table_remembers_it(setup: Setup) -> None:
    create(setup)
    with setup.running(**TABLES) as capture:
        setup.caught_up(capture)
    start_over(CaptureSettings(**setup.settings))
    with setup.running(tables=["public.orders"]) as capture:
        change(setup, "items")
        setup.caught_up(capture)
    with setup.running(**TABLES) as capture:
        wait_until_copied(setup, capture)
    assert final_rows(setup.read("items")) == setup.rows("items")


def encode_format_2(state: CaptureState) -> bytes:
    """As earlier versions stored it."""
    fields = json.loads(state.encode_now())  # type: ignore[attr-defined]
    for table in fields["tables"].values():
        for name in ("key", "published", "partitions"):
            del table[name]
    return json.dumps(fields | {"format": 2}).encode()


@pytest.mark.parametrize("is_published", [True, False])
def test_position_of_an_earlier_version_goes_on(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, is_published: bool
) -> None:
    """Only a table that is not published now has certainly left."""
    create(setup)
    with monkeypatch.context() as patch:
        patch.setattr(CaptureState, "encode_now", CaptureState.encode, raising=False)
        patch.setattr(CaptureState, "encode", encode_format_2)
        with setup.running(**TABLES) as capture:
            setup.caught_up(capture)
    if not is_published:
        setup.execute(f"ALTER PUBLICATION millstream_{setup.name} DROP TABLE items")
    change(setup, "items")
    with setup.running(**TABLES) as capture:
        if not is_published:
            wait_until_copied(setup, capture)
        setup.caught_up(capture)
        state = capture.progress.state
    assert state is not None
    assert all(it.published.startswith("table ") for it in state.tables.values())
    assert final_rows(setup.read("items")) == setup.rows("items")
    assert any(it.op == "t" for it in setup.read("items")) != is_published


PARTED = "CREATE TABLE items (id int PRIMARY KEY, version int) PARTITION BY RANGE (id)"


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "stopped"])
def test_partitions_that_bring_or_take_rows_are_named(
    setup: Setup, caplog: pytest.LogCaptureFixture, is_running: bool
) -> None:
    setup.execute(PARTED)
    for number in range(3):
        bounds = f"FROM ({10 * number}) TO ({10 * number + 10})"
        setup.execute(f"CREATE TABLE part{number} PARTITION OF items FOR VALUES {bounds}")
    setup.execute("INSERT INTO items VALUES (1, 0), (11, 0), (21, 0)")

    def move() -> None:
        setup.execute("ALTER TABLE items DETACH PARTITION part0")
        setup.execute("DROP TABLE part1")
        setup.execute("CREATE TABLE more (id int PRIMARY KEY, version int)")
        setup.execute("INSERT INTO more VALUES (31, 0)")
        setup.execute("ALTER TABLE items ATTACH PARTITION more FOR VALUES FROM (30) TO (40)")
        setup.execute("CREATE TABLE part4 PARTITION OF items FOR VALUES FROM (40) TO (50)")

    with setup.running(tables=["public.items"]) as capture:
        setup.caught_up(capture)
        if is_running:
            move()
            wait_until(lambda: "partitions of" in caplog.text, capture=capture)
    if not is_running:
        move()
    with setup.running(tables=["public.items"]) as capture:
        setup.caught_up(capture)
        wait_until(lambda: "partitions of" in caplog.text, capture=capture)
        request(setup, "items", replace=True)
        wait_until_copied(setup, capture)
    warnings = [it.getMessage() for it in caplog.records if "partitions of" in it.getMessage()]
    named = [it for warning in warnings for it in ("part0", "part1", "more") if it in warning]
    assert sorted(named) == ["more", "part0", "part1"], warnings
    assert "capture resnapshot CAPTURE.TOML public.items --replace" in warnings[0]
    assert not any("part2" in it or "part4" in it for it in warnings)
    assert final_rows(setup.read("items")) == setup.rows("items")
