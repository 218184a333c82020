"""The table of versions: keys whose hashes are alike, undoing, growth, and the reuse of memory."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.records.batch import HEADER_SIZE_BYTES, parse_header
from millstream.storage._core import CONFLICT, TABLE_FULL, VersionTable
from millstream.storage.versions import ENTRY_BYTES
from tests.drawing import draws
from tests.storage.versioned import versioned_batch

SECRET = bytes(range(16))
ENTRY = ">IQqqQ"  # 32 bits and 64 of the hash, version, offset, hash of the event id
FIRST_SLOTS = 8
Entries = dict[tuple[int, int], tuple[int, int]]  # version and offset, by hash


class Table:
    """A table and what it should contain, as records are offered to it."""

    def __init__(self, **options: int) -> None:
        self.table = VersionTable(SECRET, **options)
        self.expected: dict[bytes, tuple[int, int]] = {}
        self.start_offset = self.end_offset = 0

    def version(self, key: bytes) -> int:
        version, offset = self.expected.get(key, (0, -1))
        return version if offset >= self.start_offset else 0

    def offer(self, *keys: bytes, fails: bool = False, event_id: bytes | None = None) -> None:
        """The next version of each key; with `fails`, a record that does not fit is the last."""
        seen = dict(self.expected)
        writes: list[tuple[bytes | None, str | None]] = []
        for index, key in enumerate(keys):
            version, offset = seen.get(key, (0, -1))
            version = version + 1 if offset >= self.start_offset else 1
            seen[key] = version, self.end_offset + index
            writes.append((key, str(version)))
        if fails:
            writes.append((b"conflict", "9"))
        refusal = self.check(writes, event_id)
        if fails:
            assert refusal is not None
            assert refusal[:2] == (CONFLICT, len(keys))
            return
        assert refusal is None
        self.table.keep()
        self.expected = seen
        self.end_offset += len(keys)

    def check(
        self,
        writes: list[tuple[bytes | None, str | None]],
        event_id: bytes | None = None,
        producer_id: int = -1,
    ) -> tuple[int, ...] | None:
        is_transactional = producer_id >= 0
        batch = versioned_batch(*writes, event_id=event_id, is_transactional=is_transactional)
        return self.table.check(
            batch,
            HEADER_SIZE_BYTES,
            len(batch),
            parse_header(batch),
            self.end_offset,
            self.start_offset,
            producer_id,
        )

    def entries(self) -> Entries:
        return decoded(self.table.encode(0, self.table.end_number, self.start_offset))

    def verify(self) -> None:
        living = {
            key: found for key, found in self.expected.items() if found[1] >= self.start_offset
        }
        assert {key: self.table.get(key, self.start_offset) for key in living} == living
        assert sorted(self.entries().values()) == sorted(living.values())
        for key in self.expected.keys() - living.keys():
            assert self.table.get(key, self.start_offset) == (0, -1)


def decoded(content: bytes) -> Entries:
    found = {
        (low, high): (version, offset)
        for low, high, version, offset, _ in struct.iter_unpack(ENTRY, content)
    }
    assert len(found) * ENTRY_BYTES == len(content)  # no key twice
    return found


def numbered(first: int, end: int) -> list[bytes]:
    return [b"key %d" % number for number in range(first, end)]


def hashes(keys: list[bytes]) -> Mapping[bytes, tuple[int, int]]:
    """Of the keys, in a table with SECRET."""
    table = Table()
    table.offer(*keys)
    by_offset = {offset: key for key, (_, offset) in table.expected.items()}
    return {by_offset[offset]: hash for hash, (_, offset) in table.entries().items()}


@pytest.fixture(scope="module")
def neighbours() -> list[bytes]:
    """Keys of one shard that want the same one of its first slots."""
    groups: dict[tuple[int, int], list[bytes]] = {}
    for key, (low, high) in hashes(numbered(0, 30_000)).items():
        groups.setdefault((high >> 56, low % FIRST_SLOTS), []).append(key)
    largest = max(groups.values(), key=len)
    assert len(largest) > 2 * FIRST_SLOTS
    return largest


def test_keys_that_want_the_same_slot_are_told_apart(neighbours: list[bytes]) -> None:
    table = Table()
    for number, key in enumerate(neighbours):
        assert table.table.get(key) == (0, -1)
        table.offer(key)
        table.offer(neighbours[number // 2])
        table.verify()


def test_hashes_that_differ_in_a_part_only_are_told_apart() -> None:
    """The index has less of a hash than the entry."""
    (low, high) = hashes([b"key"])[b"key"]
    table = Table()
    table.table.load(struct.pack(ENTRY, low ^ 1 << 31, high, 7, 0, 0))
    table.table.load(struct.pack(ENTRY, low, high ^ 1, 8, 1, 0))
    assert table.table.get(b"key") == (0, -1)
    table.end_offset = 2
    table.offer(b"key")
    assert table.table.get(b"key") == (1, 2)
    assert sorted(table.entries().values()) == [(1, 2), (7, 0), (8, 1)]


def test_undoing_removes_keys_from_between_others(neighbours: list[bytes]) -> None:
    """What follows in the index has to move up, or it would not be found any more."""
    for kept in range(1, FIRST_SLOTS):
        table = Table()
        table.offer(*neighbours[:kept])
        before = table.entries()
        table.offer(*neighbours[kept:], fails=True)
        assert table.entries() == before
        table.offer(*reversed(neighbours[kept:]))
        table.verify()


def test_batch_that_makes_the_table_grow_can_be_undone() -> None:
    table = Table()
    table.offer(*numbered(0, 100))
    before = table.entries()
    for _ in range(3):
        table.offer(*numbered(50, 5_000), fails=True)
        assert table.entries() == before
        assert table.table.count == 100
        table.verify()
    table.offer(*numbered(50, 5_000))
    table.verify()


def test_entries_of_refused_batches_are_used_again() -> None:
    table = Table()
    table.offer(*numbered(0, 10))
    table.offer(*numbered(10, 2_000), fails=True)
    end_number = table.table.end_number
    for number in range(20):
        table.offer(*numbered(number * 1_990, (number + 1) * 1_990), fails=True)
    assert table.table.end_number == end_number
    table.offer(*numbered(10, 2_000))
    assert table.table.end_number == end_number
    table.verify()


def test_entries_before_the_start_of_the_log_are_used_again() -> None:
    table = Table()
    for turn in range(50):
        table.offer(*numbered(turn * 1_000, (turn + 1) * 1_000))
        table.start_offset = table.end_offset - 500
    assert table.table.end_number < 6_000
    table.expected = {key: table.expected[key] for key in numbered(48_000, 50_000)}
    table.verify()


def test_parts_of_the_table_together_have_every_entry_once() -> None:
    table = Table()
    table.offer(*numbered(0, 3_000))
    table.offer(*numbered(2_900, 4_000), fails=True)  # leaves free entries
    table.offer(*numbered(2_500, 3_500))
    end = table.table.end_number + 100
    parts = [table.table.encode(at, at + 700, 1_000) for at in range(0, end, 700)]
    assert b"".join(parts) == table.table.encode(0, end, 1_000)
    table.start_offset = 1_000
    assert decoded(b"".join(parts)) == table.entries()
    table.verify()


def events(table: Table) -> dict[int, int]:
    """The hashes of event ids, by the offset of the record."""
    content = table.table.encode(0, table.table.end_number, 0)
    return {offset: event for _, _, _, offset, event in struct.iter_unpack(ENTRY, content)}


def test_events_are_known_of_the_records_that_have_one() -> None:
    """Their hashes have memory of their own, in chunks of 1,024 entries."""
    table = Table()
    table.offer(*numbered(0, 1_500))
    assert set(events(table).values()) == {0}
    table.offer(*numbered(1_400, 1_600), event_id=b"first")
    table.offer(*numbered(1_590, 1_610), event_id=b"second", fails=True)
    found = events(table)
    assert [found[offset] != 0 for offset in range(1_400)] == [False] * 1_400
    assert len({found[offset] for offset in range(1_500, 1_700)} - {0}) == 200
    table.offer(*numbered(1_450, 1_700))  # in entries of the refused batch, too
    assert {offset for offset, event in events(table).items() if event} == set(range(1_500, 1_550))
    loaded = Table()
    loaded.table.load(table.table.encode(0, table.table.end_number, 0))
    assert events(loaded) == events(table)
    table.verify()


def test_version_and_offset_of_more_than_48_bits_are_refused() -> None:
    table = Table()
    table.table.load(struct.pack(ENTRY, 1, 2, 2**48 - 1, 2**48 - 2, 0))
    assert list(table.entries().values()) == [(2**48 - 1, 2**48 - 2)]
    for version, offset in ((2**48, 0), (1, 2**48 - 1)):
        with pytest.raises(OverflowError, match="have 48 bits"):
            table.table.load(struct.pack(ENTRY, 3, 4, version, offset, 0))
    assert table.table.count == 1


@pytest.mark.parametrize("producer_id", [-1, 7])
def test_full_table_refuses_new_keys_until_records_are_deleted(producer_id: int) -> None:
    full = 5_000  # in every part of the index, so that each can drop some
    table = Table(keys_max=full)
    table.offer(*numbered(0, full - 2))
    new: list[tuple[bytes | None, str | None]] = [(b"new %d" % it, "1") for it in range(3)]
    before = table.entries()
    refusal = table.check(new, producer_id=producer_id)
    assert refusal is not None
    assert refusal[:2] == (TABLE_FULL, 2)
    assert (table.entries(), table.table.held_count) == (before, 0)
    table.offer(*numbered(full - 2, full))
    known: list[tuple[bytes | None, str | None]] = [(b"key 49", "2")]
    assert table.check(known, producer_id=producer_id) is None
    table.table.roll_back()
    table.start_offset = table.end_offset
    assert table.check(new, producer_id=producer_id) is None
    table.table.keep()
    if producer_id >= 0:
        table.table.end_transaction(producer_id, True)
    assert [table.table.get(key) for key, _ in new if key] == [
        (1, full),
        (1, full + 1),
        (1, full + 2),
    ]


def test_every_key_is_found_in_a_table_of_many() -> None:
    table = Table()
    for start in range(0, 100_000, 5_000):
        table.offer(*numbered(start, start + 5_000))
    table.verify()
    assert all(table.table.get(key) == (0, -1) for key in numbered(100_000, 200_000))


def random_entries(count: int, first_offset: int, seed: int) -> bytes:
    draw = random.Random(seed)
    return b"".join(
        struct.pack(ENTRY, draw.getrandbits(32), draw.getrandbits(64), 1, first_offset + i, 0)
        for i in range(count)
    )


def test_large_table_has_every_entry_while_its_parts_move_to_larger_regions() -> None:
    """Its parts reach each size one by one, so that regions of two sizes are in use at once."""
    table = Table()
    content = b""
    for turn in range(12):
        content += random_entries(40_000, turn * 40_000, turn)
        table.table.load(content[-40_000 * ENTRY_BYTES :])
        table.end_offset = (turn + 1) * 40_000
        table.offer(*numbered(turn * 100, turn * 100 + 100))
        assert table.table.encode(0, 1, 0) == b""
        found = decoded(table.table.encode(0, table.table.end_number, 0))
        assert found.items() >= decoded(content).items()
        assert len(found) == table.table.count == len(content) // ENTRY_BYTES + (turn + 1) * 100
        assert all(table.table.get(key)[0] == 1 for key in table.expected)


def test_large_table_keeps_its_size_while_the_start_of_the_log_moves() -> None:
    table = Table()
    for turn in range(40):
        table.table.load(random_entries(30_000, table.end_offset, turn))
        table.end_offset += 30_000
        table.start_offset = max(0, table.end_offset - 120_000)
        table.offer(*numbered(turn * 10, turn * 10 + 10))  # the table learns where the log starts
    assert len(table.entries()) == 120_010
    assert table.table.end_number < 400_000


def test_memory_of_large_tables_is_freed_with_them() -> None:
    content = random_entries(300_000, 0, 1)
    process = psutil.Process()
    sizes = []
    for _ in range(6):
        VersionTable(SECRET).load(content)
        sizes.append(process.memory_info().rss)
    assert max(sizes[1:]) - sizes[0] < len(content), sizes


steps = st.lists(
    st.tuples(
        st.integers(0, 3_000),  # the first key
        st.integers(1, 400),  # keys
        st.sampled_from(["append", "append", "append", "refuse", "delete"]),
    ),
    max_size=30,
)


@given(steps=steps)
@settings(max_examples=draws(60), deadline=None)
def test_table_contains_what_was_appended(steps: list[tuple[int, int, str]]) -> None:
    table = Table()
    for first, count, what in steps:
        if what == "delete":
            table.start_offset += (table.end_offset - table.start_offset) * count // 400
        else:
            keys = numbered(first, first + count)
            table.offer(*keys, keys[0], fails=what == "refuse")
        table.verify()
