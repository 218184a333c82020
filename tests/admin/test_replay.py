"""What a replay remembers; replays themselves are in test_dlq."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.admin.replay import MEMORY_TEXT_MAX, PartitionMemory


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
