"""The memory for responses: shared fairly, and never all of it taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.network.memory import ALLOWANCE_DIVISOR, MINIMUM_BYTES, ResponseMemory

MB = 1024 * 1024


def test_connection_may_use_its_own_limit_while_there_is_plenty() -> None:
    memory = ResponseMemory(128 * MB, 4 * MB)
    assert memory.allowance == 4 * MB
    assert not memory.is_short


def test_connection_may_use_a_part_of_what_is_left() -> None:
    memory = ResponseMemory(128 * MB, 4 * MB)
    memory.add(120 * MB)
    assert memory.allowance == 8 * MB // ALLOWANCE_DIVISOR
    assert memory.is_short


def test_connection_may_always_use_the_minimum() -> None:
    memory = ResponseMemory(MB, 4 * MB)
    memory.add(50 * MB)
    assert memory.allowance == MINIMUM_BYTES


@given(connections=st.integers(1, 3000), bytes_max=st.integers(MB, 512 * MB))
def test_connections_that_never_read_hold_the_limit_and_their_minimum_at_the_most(
    connections: int, bytes_max: int
) -> None:
    memory = ResponseMemory(bytes_max, 4 * MB)
    for _ in range(connections):
        memory.add(memory.allowance)
    assert memory.held_bytes <= bytes_max + connections * MINIMUM_BYTES
