"""The guard against late ends: who is told apart from whom."""

from __future__ import annotations

from millstream.coordination.transactions.late_ends import (
    CLIENTS_MAX,
    ClientConnection,
    LateEndGuard,
)


def joined(*connections: ClientConnection) -> LateEndGuard:
    guard = LateEndGuard()
    for connection in connections:
        guard.joined(connection)
    return guard


def test_end_is_late_over_a_connection_that_its_client_has_replaced() -> None:
    guard = joined(ClientConnection("app", "host", 1), ClientConnection("app", "host", 5))
    assert guard.is_late(ClientConnection("app", "host", 1))
    assert guard.is_late(ClientConnection("app", "host", 4))


def test_end_is_welcome_over_the_newest_connection_and_newer_ones() -> None:
    guard = joined(ClientConnection("app", "host", 5))
    assert not guard.is_late(ClientConnection("app", "host", 5))
    assert not guard.is_late(ClientConnection("app", "host", 9))


def test_end_of_another_client_is_never_late() -> None:
    guard = joined(ClientConnection("app", "host", 5))
    assert not guard.is_late(ClientConnection("other", "host", 1))
    assert not guard.is_late(ClientConnection("app", "elsewhere", 1))
    assert not guard.is_late(ClientConnection(None, "host", 1))


def test_older_connection_that_joins_late_does_not_become_the_newest() -> None:
    guard = joined(ClientConnection("app", "host", 5), ClientConnection("app", "host", 1))
    assert guard.is_late(ClientConnection("app", "host", 4))


def test_guard_remembers_a_bounded_number_of_clients() -> None:
    guard = joined(*(ClientConnection(f"app{n}", "host", 5) for n in range(CLIENTS_MAX + 1)))
    assert not guard.is_late(ClientConnection("app0", "host", 1))
    assert guard.is_late(ClientConnection("app1", "host", 1))
