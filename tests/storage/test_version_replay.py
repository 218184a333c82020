"""Versions come out of the log again after restarts, crashes, compaction and truncation."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, CorruptBatch
from millstream.records.record import ControlType
from millstream.storage import version_replay
from millstream.storage.filesystem import write_file
from millstream.storage.steps import run_here
from millstream.storage.version_replay import build_versions, needs_snapshot, save_versions
from tests.drawing import draws
from tests.storage.cleaning import DAY_MS, MortalFileSystem, PowerCut
from tests.storage.store import apply_retention, truncate_to
from tests.storage.versioned import CODECS, VersionedStore, conditional, versioned_batch

KEYS = [b"a", b"b", b"c"]
COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT


def check(store: VersionedStore) -> None:
    assert store.versions(KEYS) == store.expected(KEYS)


def filled() -> VersionedStore:
    """Many versions in several segments, one of a deleted key, and two transactions."""
    store = VersionedStore()
    for number in range(10):
        store.offer((b"a", number + 1), compression=CODECS[number % len(CODECS)])
    store.offer((b"b", 1), (b"b", 2))
    store.offer((b"b", 3), value=None)
    store.offer_in_transaction(7, (b"c", 1))
    store.end(7, ABORT)
    store.offer_in_transaction(8, (b"c", 1), (b"c", 2))
    store.end(8, COMMIT)
    assert len(store.log().segments) > 2
    return store


def save(store: VersionedStore) -> None:
    run_here(save_versions(store.log(), now_ms=store.clock.now_ms()))


def snapshots(store: VersionedStore) -> list[str]:
    return [path.rpartition("/")[2] for path in store.files(".versions")]


def test_versions_are_rebuilt_after_a_kill_without_a_snapshot() -> None:
    store = filled()
    store.kill()
    assert store.log().needs_versions
    with pytest.raises(ApiError, match="being read from its log"):
        store.offer((b"a", 11))
    check(store.ready())
    store.offer((b"a", 11), (b"b", 4), (b"c", 3))


def test_clean_stop_saves_a_snapshot_that_the_next_start_uses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = filled()
    store.offer_in_transaction(9, (b"a", 11))
    store.restart()
    assert snapshots(store) == [f"{store.log().log_end_offset:020d}.versions"]
    replayed: list[int] = []
    chunk = version_replay.replay_batches
    monkeypatch.setattr(
        version_replay, "replay_batches", lambda *args: replayed.append(1) or chunk(*args)
    )
    check(store.ready())
    assert sum(replayed) <= 1  # the last segment, in which the log ends
    with pytest.raises(ApiError, match="held"):
        store.offer((b"a", 11))
    store.end(9, COMMIT)
    store.offer((b"a", 12))
    store.restart()
    assert snapshots(store) == [f"{store.log().log_end_offset:020d}.versions"]


@pytest.mark.parametrize(
    "damage", ["torn", "missing", "old", "of another format", "from the future"]
)
def test_damaged_missing_or_older_snapshot_is_made_up_for_by_the_log(damage: str) -> None:
    store = filled()
    save(store)
    (path,) = store.files(".versions")
    content = store.files(".versions")[path]
    store.offer((b"a", 11))
    store.flush()
    if damage == "torn":
        write_file(store.fs, path, content[:-9], sync=True)
    elif damage == "of another format":
        head = content[:2].replace(b"\0\2", b"\0\1")
        write_file(store.fs, path, head + content[2:], sync=True)
    elif damage == "missing":
        store.fs.unlink(path)
    elif damage == "from the future":
        truncate_to(store.log(), 5)
        write_file(store.fs, path, content, sync=True)
    store.kill()
    check(store.ready())
    assert damage in ("old", "missing") or snapshots(store) == []


def test_snapshot_is_taken_in_turns_while_records_are_appended() -> None:
    store = filled()
    steps = save_versions(store.log(), now_ms=0)
    number = 10
    sent = None
    try:
        while True:
            result = steps.send(sent)
            number += 1
            store.offer((b"a", number), (b"new %d" % number, 1))
            if number == 15:
                store.offer_in_transaction(9, (b"b", 4))
            sent = result()
    except StopIteration:
        pass
    store.end(9, COMMIT)
    store.kill()
    keys = [*KEYS, *(b"new %d" % it for it in range(11, number + 1))]
    store.ready()
    assert store.versions(keys) == store.expected(keys)
    assert store.version(b"a") == number


def test_snapshot_is_due_after_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(version_replay, "SNAPSHOT_RECORDS_MIN", 20)
    store = filled()
    assert not needs_snapshot(store.log())
    for number in range(10):
        store.offer((b"a", 11 + number))
    assert needs_snapshot(store.log())
    save(store)
    assert not needs_snapshot(store.log())
    assert len(snapshots(store)) == 1


def test_crash_at_any_operation_of_a_snapshot_leaves_the_versions_right() -> None:
    operations = 1
    is_done = False
    while not is_done:
        fs = MortalFileSystem()
        store = VersionedStore(fs=fs)
        store.offer((b"a", 1), (b"b", 1))
        save(store)
        store.offer((b"a", 2))
        fs.operations_left = operations
        try:
            save(store)
            is_done = True
        except PowerCut:
            pass
        fs.operations_left = None
        store.crash(operations)
        check(store.ready())
        operations += 1
    assert operations > 5


def test_compaction_keeps_the_version_of_every_key_and_all_tombstones() -> None:
    store = filled()
    before = store.versions(KEYS)
    for _ in range(3):
        store.seal()
        store.clean()
        store.clock.advance(2 * DAY_MS)
        store.offer((b"other", store.version(b"other") + 1))
    assert len([record for record in store.read() if record.key == b"a"]) == 1
    assert store.versions(KEYS) == before == store.expected(KEYS)
    store.kill()
    assert store.ready().versions(KEYS) == before
    with pytest.raises(ApiError, match="at version 3"):
        store.offer((b"b", 1))
    store.offer((b"b", 4))


def test_truncation_gives_versions_back_and_removes_the_snapshot() -> None:
    store = filled()
    save(store)
    truncate_to(store.log(), 4)
    assert snapshots(store) == []
    check(store)
    assert store.version(b"a") == 4
    store.offer((b"a", 5), (b"b", 1))


def test_retention_resets_the_keys_of_removed_segments() -> None:
    config = conditional(cleanup_policy=frozenset({"delete"}), retention_ms=DAY_MS)
    store = VersionedStore(config=config)
    for number in range(6):
        store.offer((b"a" if number < 3 else b"b", number % 3 + 1), value=b"x" * 200)
    store.clock.advance(2 * DAY_MS)
    store.offer((b"c", 1), value=b"x" * 200)
    store.flush(to_segments=True)
    assert apply_retention(store.log(), store.clock.now_ms()) > 0
    check(store)
    assert store.version(b"a") == 0
    store.kill()
    check(store.ready())
    store.offer((b"a", 1))


def test_setting_can_be_turned_on_and_off_on_a_log_with_records() -> None:
    plain = conditional("none")
    store = VersionedStore(config=plain)
    store.append_batch(versioned_batch((b"a", None), (b"b", "1"), (b"c", "9")))

    def configure(config: TopicConfig) -> None:
        store.config = config
        store.log().update_config(config)

    configure(conditional())
    assert store.log().needs_versions
    check(store.ready())
    store.offer((b"a", 1), (b"b", 2), (b"c", 10))
    save(store)
    configure(plain)
    assert store.log().versions is None
    assert snapshots(store) == []
    store.append_batch(versioned_batch((b"a", None), (b"c", "20")))
    configure(replace(conditional(), segment_bytes=500))
    check(store.ready())
    assert store.versions(KEYS) == {b"a": (0, -1), b"b": (2, 4), b"c": (20, 7)}


@pytest.mark.parametrize("is_saved", [False, True])
@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([(7, ABORT), (8, COMMIT)], (5, 2)),
        ([(8, COMMIT), (7, ABORT)], (5, 2)),
        ([(7, COMMIT), (8, ABORT)], (2, 1)),
        ([(8, ABORT), (7, COMMIT)], (2, 1)),
        ([(8, COMMIT), (7, COMMIT)], (5, 2)),
        ([(8, ABORT), (7, ABORT)], (1, 0)),
    ],
)
def test_transactions_that_wrote_one_key_before_the_setting_end_each_on_its_own(
    ends: list[tuple[int, ControlType]], expected: tuple[int, int], is_saved: bool
) -> None:
    store = VersionedStore(config=conditional("none"))
    store.append_batch(versioned_batch((b"a", "1")))
    for producer_id, version in ((7, "2"), (8, "5")):
        numbered = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        store.append_batch(versioned_batch((b"a", version), is_transactional=True, **numbered))
    store.config = conditional()
    store.log().update_config(store.config)
    store.ready()
    with pytest.raises(ApiError, match="held by an open transaction"):
        store.offer((b"a", 2))
    if is_saved:
        save(store)
        store.kill()
        store.ready()
    for producer_id, kind in ends:
        store.end(producer_id, kind)
    assert store.versions([b"a"]) == {b"a": expected}
    store.offer((b"a", expected[0] + 1))
    store.kill()
    assert store.ready().version(b"a") == expected[0] + 1


def test_snapshot_that_was_left_by_a_crash_is_removed_if_the_setting_is_off() -> None:
    store = filled()
    save(store)
    store.kill()
    store.config = conditional("none")
    store.log().update_config(store.config)
    assert snapshots(store) == []


def test_markers_that_come_while_the_log_is_read_are_not_missed() -> None:
    store = filled()
    store.offer_in_transaction(9, (b"a", 11))
    store.offer_in_transaction(10, (b"b", 4))
    store.kill()
    steps = build_versions(store.log())
    read = next(steps)
    store.end(9, COMMIT)
    table = read()
    read = steps.send(table)
    store.end(10, ABORT)
    tail = read()
    read = steps.send(tail)
    read()
    with pytest.raises(StopIteration):
        steps.send(None)
    check(store)
    assert store.version(b"a") == 11
    store.offer((b"a", 12), (b"b", 4))


def test_damaged_log_refuses_appends_rather_than_guess(caplog: pytest.LogCaptureFixture) -> None:
    store = filled()
    store.flush(to_segments=True)
    path = min(store.files(".log"))
    content = bytearray(store.files(".log")[path])
    content[100] ^= 1
    write_file(store.fs, path, bytes(content), sync=True)
    store.restart()
    for snapshot in store.files(".versions"):
        store.fs.unlink(snapshot)
    store.ready()
    assert store.log().needs_versions
    assert "appends are refused" in caplog.text
    with pytest.raises((ApiError, CorruptBatch)):
        store.offer((b"a", 11))


def test_recreated_log_begins_without_versions() -> None:
    store = filled()
    save(store)
    store.directories.delete("orders", 0)
    store.offer((b"a", 1))
    check(store)


class Lifetimes(RuleBasedStateMachine):
    """Whatever happens to a log, its versions are those of its last committed records."""

    def __init__(self) -> None:
        super().__init__()
        self.store = VersionedStore(config=conditional(segment_bytes=600))
        self.store.offer((b"first", 1))  # a log without records has no files
        self.open: dict[int, dict[bytes, int]] = {}
        self.producer_id = 100

    def offer(self, writes: list[tuple[bytes, int]], producer_id: int | None, codec: int) -> None:
        seen = {key: version for key, (version, _) in self.store.expected(KEYS).items()}
        own = self.open.get(producer_id, {}) if producer_id is not None else {}
        others = {key for it, held in self.open.items() if it != producer_id for key in held}
        seen |= own
        expected = True
        offered = []
        for key, step in writes:
            version = max(seen[key] + step, 0)
            expected = expected and step == 1 and key not in others
            seen[key] = version
            offered.append((key, version))
        try:
            if producer_id is None:
                self.store.offer(*offered, compression=CODECS[codec])
            else:
                self.store.offer_in_transaction(producer_id, *offered, compression=CODECS[codec])
                self.open.setdefault(producer_id, {}).update(offered)
        except ApiError:
            assert not expected
        else:
            assert expected

    writes = st.lists(
        st.tuples(st.sampled_from(KEYS), st.sampled_from([1, 1, 1, 1, 0, 2, -1])),
        min_size=1,
        max_size=3,
    )

    @rule(writes=writes, codec=st.integers(0, len(CODECS) - 1))
    def append(self, writes: list[tuple[bytes, int]], codec: int) -> None:
        self.offer(writes, None, codec)

    @rule(writes=writes, codec=st.integers(0, 1), is_new=st.booleans())
    def append_in_transaction(
        self, writes: list[tuple[bytes, int]], codec: int, is_new: bool
    ) -> None:
        if is_new or not self.open:
            self.producer_id += 1
        self.offer(writes, max(self.open, default=self.producer_id), codec)

    @precondition(lambda self: self.open)
    @rule(kind=st.sampled_from([COMMIT, ABORT]))
    def end(self, kind: ControlType) -> None:
        producer_id = min(self.open)
        del self.open[producer_id]
        self.store.end(producer_id, kind)

    @rule()
    def kill(self) -> None:
        self.store.flush()
        self.store.kill()
        self.store.ready()

    @rule(seed=st.integers(0, 9))
    def crash_after_a_flush(self, seed: int) -> None:
        self.store.flush()
        self.store.crash(seed)
        self.store.ready()

    @rule()
    def restart(self) -> None:
        self.store.restart()
        self.store.ready()

    @rule()
    def save(self) -> None:
        save(self.store)

    @rule()
    def clean(self) -> None:
        self.store.seal()
        self.store.clock.advance(2 * DAY_MS)
        if self.store.plan().segments:  # none behind an open transaction
            self.store.clean()

    @precondition(lambda self: not self.open)
    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        log = self.store.log()
        size = log.log_end_offset - log.log_start_offset
        log.delete_records_before(log.log_start_offset + int(size * part / 4))

    @invariant()
    def versions_are_those_of_the_log(self) -> None:
        check(self.store)


Lifetimes.TestCase.settings = settings(
    max_examples=draws(40),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestLifetimes = Lifetimes.TestCase
