"""What a replay remembers; replays themselves are in test_dlq."""

from __future__ import annotations

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.admin.errors import OperationFailed
from millstream.admin.letters import Letter
from millstream.admin.replay import MEMORY_TEXT_MAX, ORIGINS_MAX, Memory, PartitionMemory, outgoing


def after(*steps: tuple[int, bool], memory: PartitionMemory | None = None) -> PartitionMemory:
    memory = memory or PartitionMemory()
    for offset, replayed in steps:
        memory.meet(offset, replayed=replayed or memory.contains(offset))
    return memory


def remembered(memory: PartitionMemory) -> PartitionMemory:
    return PartitionMemory.decode(*memory.encode())


def test_memory_is_one_offset_while_there_are_no_holes() -> None:
    assert after((3, True), (4, True), (7, True)).encode() == (8, "")


def test_memory_has_the_letters_behind_the_first_open_one() -> None:
    memory = remembered(after((0, True), (1, False), (2, True), (5, True)))
    assert memory.done_below == 1
    assert [memory.contains(offset) for offset in range(7)] == [
        *(True, False, True, False, False, True, False)
    ]


def test_memory_keeps_what_lies_beyond_where_a_replay_has_come_to() -> None:
    memory = remembered(after((0, False), (1, True), (9, True)))
    again = remembered(after((0, True), memory=memory))
    assert again.contains(9)
    assert again.contains(0)


def test_memory_of_ten_thousand_letters_in_turn_fits() -> None:
    memory = after(*((offset, offset % 2 == 1) for offset in range(10_000)))
    assert len(memory.encode()[1]) < MEMORY_TEXT_MAX


@pytest.mark.parametrize(("offset", "start"), [(10_000_000, 0), (5 * 10**12, 5 * 10**12 - 9)])
def test_one_letter_far_behind_the_first_is_remembered(offset: int, start: int) -> None:
    memory = PartitionMemory()
    memory.mark(offset, start)
    base, metadata = memory.encode()
    assert (base, len(metadata) <= MEMORY_TEXT_MAX) == (start, True)
    again = PartitionMemory.decode(base, metadata)
    assert [again.contains(it) for it in (offset - 1, offset, offset + 1)] == [False, True, False]
    assert len(again.done._blocks) == 1  # not a bit for each offset before it


def test_letters_too_far_apart_are_refused() -> None:
    memory = PartitionMemory()
    memory.mark(10**12, 0)
    with pytest.raises(OperationFailed, match="too scattered"):
        memory.encode()


def test_letters_replayed_in_turn_take_no_memory() -> None:
    memory = after(*((offset, True) for offset in range(10_000)))
    assert memory.contains(9_999)
    assert not memory.done._blocks


@pytest.mark.parametrize(
    "metadata",
    ["no base64", "AAAA", base64.b64encode(zlib.compress(bytes(100 * 1024 * 1024))).decode()],
)
def test_metadata_that_no_replay_has_written_are_refused(metadata: str) -> None:
    with pytest.raises(OperationFailed, match="not committed by a replay"):
        PartitionMemory.decode(0, metadata)


def letter(offset: int, *headers: tuple[str, bytes]) -> Letter:
    names = {"topic": "t", "partition": "0", "offset": str(offset), "group": "g"}
    errors = [(f"__dlq.errors.{name}", it.encode()) for name, it in names.items()]
    return Letter("dlq", 0, offset, 0, None, b"v", (*errors, *headers))


def test_failures_that_are_remembered_are_limited() -> None:
    memory = Memory()
    for offset in range(ORIGINS_MAX + 1):
        memory.remember(letter(offset))
    assert [memory.is_duplicate(letter(it)) for it in (0, 1, ORIGINS_MAX)] == [False, True, True]


@pytest.mark.parametrize("count", ["²".encode(), b"9" * 5_000])
def test_replay_count_that_is_no_number_is_none(count: bytes) -> None:
    sent = outgoing(letter(1, ("__dlq.replay.count", count)), None)
    assert ("__dlq.replay.count", b"1") in sent.headers


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), max_size=200), st.integers(0, 200))
def test_memory_forgets_nothing_and_invents_nothing(
    steps: list[tuple[int, bool]], stop: int
) -> None:
    """Letters at any distance, replayed or not, by one replay that stops and by another."""
    offset = 0
    letters = []
    for distance, replayed in steps:
        offset += distance
        letters.append((offset, replayed))
    first = remembered(after(*letters[:stop]))
    done = {offset for offset, replayed in letters[:stop] if replayed}
    assert {offset for offset, _ in letters if first.contains(offset)} == done
    second = remembered(after(*letters, memory=first))
    done |= {offset for offset, replayed in letters if replayed}
    assert {offset for offset, _ in letters if second.contains(offset)} == done
