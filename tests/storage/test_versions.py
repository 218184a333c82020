"""Conditional appends: what is accepted, what is refused, and what the versions are afterwards."""

from __future__ import annotations

import pytest

from millstream.errors import ApiError, ErrorCode, StorageError
from millstream.records.batch import HEADER_SIZE_BYTES, parse_header
from millstream.records.record import ControlType
from millstream.storage._core import VersionTable
from millstream.storage.versions import ConditionFailed, encode_snapshot, load_snapshot
from tests.storage.versioned import CODECS, VersionedStore, conditional, versioned_batch

COMMIT, ABORT = ControlType.COMMIT, ControlType.ABORT


def refusal(store: VersionedStore, *writes: tuple[bytes | None, int]) -> ConditionFailed:
    end_offset, before = store.log().log_end_offset, snapshot(store)
    with pytest.raises(ConditionFailed) as caught:
        store.offer(*writes)
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert store.log().log_end_offset == end_offset
    assert snapshot(store) == before
    return caught.value


def snapshot(store: VersionedStore) -> tuple[set[bytes], list[tuple[int, ...]]]:
    table = store.log().versions
    assert table is not None
    content = table.encode(0, table.end_number, 0)
    return {content[at : at + 40] for at in range(0, len(content), 40)}, list(table.held())


@pytest.mark.parametrize("compression", CODECS)
def test_next_version_of_a_key_is_appended_and_any_other_refused(compression: int) -> None:
    store = VersionedStore()
    assert store.offer((b"a", 1), compression=compression).first_offset == 0
    assert store.offer((b"b", 1), (b"a", 2), (b"a", 3), compression=compression).first_offset == 1
    for wrong in (0, 1, 3, 5):
        error = refusal(store, (b"a", wrong))
        assert str(error).endswith(
            f"the record has version {wrong}, its key is at version 3 (offset 3)"
        )
        assert error.record_errors == [(0, error.message)]
        assert error.end_offset == 4
    assert store.versions([b"a", b"b", b"c"]) == {b"a": (3, 3), b"b": (1, 1), b"c": (0, -1)}


def test_one_record_that_does_not_fit_refuses_its_batch() -> None:
    store = VersionedStore()
    store.offer((b"a", 1))
    error = refusal(store, (b"a", 2), (b"new", 1), (b"a", 3), (b"new", 3))
    assert [index for index, _ in error.record_errors] == [3]
    assert store.version(b"a") == 1
    assert store.version(b"new") == 0


@pytest.mark.parametrize(
    ("key", "version", "reason"),
    [
        (None, "1", "without a key"),
        (b"a", None, "no header millstream-version"),
        (b"a", "", "decimal number"),
        (b"a", "-1", "decimal number"),
        (b"a", "1" * 15, "decimal number of at most 14 digits"),
        (b"a", "9" * 14, "version conflict: the record has version 99999999999999, its key is at"),
        (b"a", "0x1", "decimal number"),
    ],
)
def test_record_without_a_usable_version_is_refused(
    key: bytes | None, version: str | None, reason: str
) -> None:
    store = VersionedStore(config=conditional(cleanup_policy=frozenset({"delete"})))
    with pytest.raises(ConditionFailed, match=reason):
        store.offer_batch(versioned_batch((key, version)))


def test_records_that_the_header_does_not_announce_are_refused() -> None:
    table = VersionTable()
    batch = versioned_batch((b"a", "1"), (b"b", "1"))
    header = parse_header(batch)
    for wrong in (header._replace(record_count=1), header._replace(record_count=3)):
        with pytest.raises(Exception, match="batch with base offset"):
            table.check(batch, HEADER_SIZE_BYTES, len(batch), wrong, 0, 0)
        assert table.count == 0


def test_versions_are_given_back_if_the_append_fails() -> None:
    store = VersionedStore(config=conditional(segment_bytes=300))
    store.offer((b"a", 1))
    store.log().roll(store.clock.now_ms())
    with pytest.raises(ApiError, match="RECORD_LIST_TOO_LARGE"):
        store.offer((b"a", 2), (b"b", 1), value=b"x" * 400)
    with pytest.raises(ApiError, match="RECORD_LIST_TOO_LARGE"):
        store.offer_in_transaction(7, (b"a", 2), (b"a", 3), value=b"x" * 400)
    store.offer((b"a", 2), (b"b", 1))


def test_repeated_batch_with_the_same_event_ids_is_answered_with_its_offsets() -> None:
    store = VersionedStore()
    store.offer((b"z", 1))
    first = store.offer((b"a", 1), (b"b", 1), (b"a", 2), event_id=b"e1")
    assert store.offer((b"a", 1), (b"b", 1), (b"a", 2), event_id=b"e1") == first
    assert store.log().log_end_offset == 4
    with pytest.raises(ConditionFailed):
        store.offer((b"a", 1), (b"b", 1), (b"a", 2), event_id=b"e2")
    with pytest.raises(ConditionFailed):
        store.offer((b"a", 1), (b"b", 1), (b"a", 2))
    with pytest.raises(ConditionFailed):  # not all of it is there
        store.offer((b"a", 1), (b"b", 1), (b"a", 2), (b"c", 1), event_id=b"e1")
    store.offer((b"b", 2), event_id=b"e3")
    with pytest.raises(ConditionFailed):  # one of its keys has moved on
        store.offer((b"a", 1), (b"b", 1), (b"a", 2), event_id=b"e1")


def test_open_transaction_holds_its_keys_and_an_abort_gives_them_back() -> None:
    store = VersionedStore()
    store.offer((b"a", 1))
    store.offer_in_transaction(7, (b"a", 2), (b"b", 1), (b"a", 3))
    assert store.versions([b"a", b"b"]) == {b"a": (1, 0), b"b": (0, -1)}
    for write in ((b"a", 2), (b"a", 4), (b"b", 1)):
        assert "held by an open transaction" in str(refusal(store, write))
    with pytest.raises(ConditionFailed, match="held"):
        store.offer_in_transaction(8, (b"c", 1), (b"b", 2))
    store.offer_in_transaction(8, (b"c", 1))
    store.end(7, ABORT)
    store.offer((b"a", 2), (b"b", 1))
    store.end(8, COMMIT)
    store.offer((b"c", 2))
    assert store.versions([b"a", b"b", b"c"]) == store.expected([b"a", b"b", b"c"])


def test_transaction_goes_on_from_its_own_versions_and_a_commit_makes_them_count() -> None:
    store = VersionedStore()
    store.offer_in_transaction(7, (b"a", 1))
    store.offer_in_transaction(7, (b"a", 2), (b"a", 3))
    with pytest.raises(ConditionFailed, match="at version 3"):
        store.offer_in_transaction(7, (b"b", 1), (b"a", 3))
    store.end(7, COMMIT)
    assert store.versions([b"a", b"b"]) == {b"a": (3, 2), b"b": (0, -1)}
    store.offer((b"a", 4), (b"b", 1))


def test_version_of_a_deleted_record_is_zero_and_its_memory_is_reused() -> None:
    store = VersionedStore()
    for number in range(3):
        store.offer((b"a", number + 1), (b"b", number + 1))
    store.log().delete_records_before(5)
    assert store.versions([b"a", b"b"]) == {b"a": (0, -1), b"b": (3, 5)}
    store.offer((b"a", 1), (b"b", 4))
    store.log().delete_records_before(store.log().log_end_offset)
    table = store.log().versions
    assert table is not None
    for number in range(5_000):
        store.offer((b"key %d" % number, 1))
        store.log().delete_records_before(store.log().log_end_offset)
    assert table.count < 2_100  # at most what 256 shards of 8 slots have


def test_table_finds_every_key_as_it_grows_and_shrinks() -> None:
    store = VersionedStore(config=conditional(segment_bytes=10_000_000))
    keys = [b"key %d" % number for number in range(20_000)]
    for start in range(0, len(keys), 1000):
        store.offer(*[(key, 1) for key in keys[start : start + 1000]])
        refusal(store, *[(b"no %d" % number, 1) for number in range(1000)], (keys[0], 1))
    store.offer(*[(key, 2) for key in keys[::2]])
    found = store.versions(keys)
    assert [found[key][0] for key in keys] == [2, 1] * 10_000
    assert [found[key][1] for key in keys[1::2]] == list(range(1, 20_000, 2))


def test_record_is_appended_only_at_the_offset_of_its_header() -> None:
    store = VersionedStore(config=conditional("offset"))

    def offer(*offsets: int) -> int:
        writes = [(None, str(offset)) for offset in offsets]
        batch = versioned_batch(*writes, header="millstream-offset")
        return store.offer_batch(batch).first_offset

    assert offer(0) == 0
    assert offer(1, 2, 3) == 1
    for wrong in ((0,), (5,), (4, 4), (4, 6)):
        with pytest.raises(ConditionFailed, match="the log ends at offset 4") as caught:
            offer(*wrong)
        assert caught.value.end_offset == 4
    with pytest.raises(ConditionFailed, match="decimal number of at most 18 digits"):
        offer(10**18)
    with pytest.raises(ConditionFailed, match="no header millstream-offset"):
        store.offer_batch(versioned_batch((b"a", "4")))


def test_batch_of_a_transaction_that_is_not_appended_holds_what_was_held_before() -> None:
    store = VersionedStore()
    store.offer((b"a", 1))
    store.offer_in_transaction(7, (b"a", 2), (b"b", 1))
    table = store.log().versions
    assert table is not None
    before = table.held()
    for producer_id, writes in ((7, ((b"a", "3"), (b"c", "1"))), (8, ((b"c", "1"), (b"d", "1")))):
        batch = versioned_batch(*writes, producer_id=producer_id, is_transactional=True)
        offered = batch, HEADER_SIZE_BYTES, len(batch), parse_header(batch), 3, 0, producer_id
        assert table.check(*offered) is None
        assert table.held_count == 2 + len(writes) - (producer_id == 7)
        table.roll_back()
        assert (table.held(), table.held_count) == (before, 2)
    store.end(7, COMMIT)
    assert store.versions([b"a", b"b", b"c"]) == store.expected([b"a", b"b", b"c"])
    assert table.held_count == 0


def test_snapshot_contains_the_table_and_what_transactions_hold() -> None:
    store = VersionedStore()
    store.offer((b"a", 1), (b"b", 1), event_id=b"e")
    store.offer_in_transaction(7, (b"a", 2))
    table = store.log().versions
    assert table is not None
    content = encode_snapshot(
        table, [table.encode(0, table.end_number, 0)], table.held(), start_offset=3, end_offset=4
    )
    loaded, start_offset, end_offset = load_snapshot(content)
    assert (start_offset, end_offset) == (3, 4)
    assert loaded.get(b"a") == (1, 0)
    assert loaded.held() == table.held() != []
    loaded.end_transaction(7, True)
    assert loaded.get(b"a") == (2, 2)
    for damaged in (content[:40], content[:-1], content + b"x", content[:60] + b"?" + content[61:]):
        with pytest.raises(StorageError):
            load_snapshot(damaged)
