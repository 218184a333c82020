"""Status, new snapshots and a new start, asked for by another process."""

from __future__ import annotations

import pytest

from millstream.connect.capture import control
from millstream.connect.capture.control import read_status, remove, request_snapshot, start_over
from millstream.connect.capture.settings import CaptureSettings
from millstream.connect.capture.tables import CaptureError
from tests.connect.capture.harness import TABLE, Setup, wait_until
from tests.peers.transactional import wait_for_markers


def settings_of(setup: Setup, **changes: object) -> CaptureSettings:
    return CaptureSettings(**setup.settings | changes)


def test_status_follows_a_capture(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    settings = settings_of(setup)
    before = read_status(settings)
    assert (before.phase, before.position, before.problem) == ("not started", None, None)
    setup.execute("INSERT INTO orders SELECT g, 0 FROM generate_series(1, 7) g")
    with setup.running() as capture:
        setup.caught_up(capture)
        wait_for_markers(setup.bootstrap)
        running = read_status(settings)
        assert running.is_running
        assert (running.phase, running.wal_status) == ("streaming", "reserved")
        assert running.tables["public.orders"].rows == 7
        assert running.to_json()["slot"] == setup.slot
    setup.execute("INSERT INTO orders SELECT g, 0, repeat('x', 99) FROM generate_series(8, 999) g")
    setup.wait_until_slot_is_free()
    stopped = read_status(settings_of(setup, lag_alarm_bytes=1000))
    assert not stopped.is_running
    assert (stopped.lag_bytes or 0) > 100_000
    assert "more than lag_alarm_bytes" in (stopped.problem or "")


def test_status_shows_a_lost_slot(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    with setup.running() as capture:
        setup.caught_up(capture)
    setup.drop_slot()
    assert "is gone" in (read_status(settings_of(setup)).problem or "")


def test_status_shows_what_a_start_would_refuse(setup: Setup) -> None:
    for table in ("orders", "items"):
        setup.execute(TABLE.format(table))
    with setup.running() as capture:
        setup.caught_up(capture)
    assert read_status(settings_of(setup)).problem is None
    setup.execute(f"ALTER PUBLICATION {setup.slot} DROP TABLE items")
    found = read_status(settings_of(setup))
    assert list(found.table_problems) == ["public.items"]
    assert f"publication {setup.slot} lacks it" in found.table_problems["public.items"]
    setup.execute(f"ALTER PUBLICATION {setup.slot} SET (publish = 'insert')")
    assert "does not publish update" in (read_status(settings_of(setup)).problem or "")
    setup.execute(f"DROP PUBLICATION {setup.slot}")
    assert "was dropped" in (read_status(settings_of(setup)).problem or "")
    other = setup.url.rpartition("/")[0] + "/postgres"
    assert "but this is postgres of" in (
        read_status(settings_of(setup, database=other)).problem or ""
    )


def test_snapshot_of_a_table_that_is_left_out_is_refused_with_the_reason(setup: Setup) -> None:
    setup.execute("CREATE TABLE scratch (x int)")
    with pytest.raises(CaptureError, match=r"cannot copy public\.scratch: it has no replica"):
        request_snapshot(settings_of(setup), ["public.scratch"])


def test_requested_snapshot_is_made_by_the_running_capture(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders VALUES (1, 0)")
    settings = settings_of(setup)
    with pytest.raises(Exception, match="start the capture first"):
        request_snapshot(settings, [])
    with setup.running() as capture:
        setup.caught_up(capture)
        with pytest.raises(Exception, match=r"not captured: public.x; captured are public.orders"):
            request_snapshot(settings, ["public.x"])
        assert request_snapshot(settings, [], replaces=True) == ["public.orders"]
        setup.caught_up(capture)
    assert [it.op for it in setup.read("orders")] == ["r", "t", "r"]


def test_snapshot_of_a_large_keyless_table_is_refused(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the capture has to end because of it."""
    setup.execute("CREATE TABLE keyless (n int)")
    setup.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    setup.execute("INSERT INTO keyless SELECT g FROM generate_series(1, 1000) g")
    with setup.running() as capture:
        setup.caught_up(capture)
        monkeypatch.setattr(control, "KEYLESS_BYTES_MAX", 1000)
        with pytest.raises(Exception, match=r"public.keyless has no key.*--new-slot"):
            request_snapshot(settings_of(setup), [])


def test_new_start_replaces_a_lost_slot(setup: Setup) -> None:
    """Rows that were deleted in the gap disappear."""
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders VALUES (1, 0), (2, 0)")
    with setup.running() as capture:
        setup.caught_up(capture)
    setup.drop_slot()
    setup.execute("DELETE FROM orders WHERE id = 1")
    assert "--new-slot" in setup.failure()
    start_over(settings_of(setup))
    wait_for_markers(setup.bootstrap)
    assert read_status(settings_of(setup)).phase == "creating"
    with setup.running() as capture:
        setup.execute("INSERT INTO orders VALUES (3, 0)")
        setup.caught_up(capture)
    setup.check("orders")


def test_new_start_leaves_the_slot_of_another_capture(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    with setup.running() as capture:
        setup.caught_up(capture)
        other = settings_of(setup, name=f"{setup.name}x", slot=setup.slot)
        with pytest.raises(CaptureError, match="has no position for it: the slot is of another"):
            start_over(other)
        setup.execute("INSERT INTO orders VALUES (1, 0)")
        setup.caught_up(capture)
    setup.check("orders")


def test_new_start_stops_a_running_capture(setup: Setup) -> None:
    setup.execute(TABLE.format("orders"))
    process = setup.spawn()
    try:
        wait_until(lambda: read_status(settings_of(setup)).is_running)
        start_over(settings_of(setup))
        assert process.wait(120) == 1
    finally:
        process.kill()
        process.wait()
    with setup.running() as capture:
        setup.caught_up(capture)
    setup.check("orders")


@pytest.mark.parametrize("manages", [True, False])
def test_removed_capture_leaves_nothing_in_the_database(setup: Setup, manages: bool) -> None:
    """A publication that others manage stays, and so do the topics."""
    setup.execute(TABLE.format("orders"))
    setup.execute("INSERT INTO orders VALUES (1, 0)")
    if not manages:
        setup.execute(f"CREATE PUBLICATION {setup.slot} FOR TABLE orders")
    settings = settings_of(setup, manage_publication=manages)
    with pytest.raises(CaptureError, match="has no state of capture"):
        remove(settings)
    with setup.running(manage_publication=manages) as capture:
        setup.caught_up(capture)
    setup.wait_until_slot_is_free()
    found = remove(settings)
    publication = [f"publication {setup.slot}"] if manages else []
    assert found.dropped == [f"slot {setup.slot}", *publication]
    assert found.topics[:2] == [f"{setup.name}.public.orders", settings.position_topic]
    query = "SELECT pubname FROM pg_publication UNION SELECT slot_name FROM pg_replication_slots"
    left = {name for (name,) in setup.execute(query).fetchall()}
    assert (setup.slot in left) is not manages
    assert remove(settings).dropped == []
    setup.execute("DELETE FROM orders")
    with setup.running(manage_publication=manages) as capture:
        setup.caught_up(capture)
    setup.check("orders")
