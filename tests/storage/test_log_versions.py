"""When a log has the versions of its keys, and when it forgets them."""

from __future__ import annotations

from millstream.records.record import ControlType
from millstream.storage.steps import run_here
from millstream.storage.version_replay import save_versions
from tests.storage.versioned import VersionedStore, conditional


def test_empty_log_begins_without_versions_and_needs_none() -> None:
    log = VersionedStore().log()
    assert log.versions is not None
    assert log.versions.count == 0
    assert not log.needs_versions


def test_versions_are_forgotten_with_their_snapshot_when_the_topic_stops_them() -> None:
    store = VersionedStore()
    store.offer((b"a", 1))
    log = store.log()
    run_here(save_versions(log, now_ms=store.clock.now_ms()))
    assert len(store.files(".versions")) == 1
    log.update_config(conditional("none"))
    assert log.versions is None
    assert log.version_snapshot is None
    assert not store.files(".versions")
    log.update_config(conditional())
    assert log.needs_versions  # the log may have changed meanwhile


def test_deleted_log_needs_no_versions() -> None:
    store = VersionedStore()
    store.offer((b"a", 1))
    log = store.log()
    log.versions = None
    assert log.needs_versions
    log.mark_deleted()
    assert not log.needs_versions


def test_marker_releases_the_keys_of_its_transaction() -> None:
    for marker, version in ((ControlType.COMMIT, 1), (ControlType.ABORT, 0)):
        store = VersionedStore()
        store.offer_in_transaction(7, (b"a", 1))
        table = store.log().versions
        assert table is not None
        assert table.held_count == 1
        store.end(7, marker)
        assert table.held_count == 0
        assert table.get(b"a")[0] == version
