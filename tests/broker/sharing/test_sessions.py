"""Share sessions: their epochs, their bound, and how they end."""

from __future__ import annotations

from uuid import UUID

import pytest

from millstream.broker.replicas.fetch_sessions import SESSION_EPOCH_MAX
from millstream.broker.sharing.sessions import ShareSession, ShareSessions
from millstream.errors import ApiError, ErrorCode

TOPIC = UUID(int=1)


def sessions() -> tuple[ShareSessions, list[str]]:
    closed: list[str] = []
    return ShareSessions(on_close=lambda it: closed.append(it.member_id)), closed


def opened(table: ShareSessions, member: str = "a", *, connection: int = 1) -> ShareSession:
    return table.open("g", member, connection, sessions_max=2)


def code(error: pytest.ExceptionInfo[ApiError]) -> ErrorCode:
    return error.value.code


def test_session_expects_its_epochs_in_order_and_wraps_them() -> None:
    table, _ = sessions()
    session = opened(table)
    assert table.next("g", "a", 1) is session
    with pytest.raises(ApiError) as error:
        table.next("g", "a", 1)
    assert code(error) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    session.epoch = SESSION_EPOCH_MAX
    table.next("g", "a", SESSION_EPOCH_MAX)
    assert session.epoch == 1


def test_session_of_another_group_or_member_is_not_found() -> None:
    table, _ = sessions()
    opened(table)
    for group, member in (("h", "a"), ("g", "b")):
        with pytest.raises(ApiError) as error:
            table.find(group, member)
        assert code(error) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_sessions_are_bounded_and_a_member_s_own_makes_room() -> None:
    table, _ = sessions()
    opened(table, "a")
    opened(table, "b")
    with pytest.raises(ApiError) as error:
        opened(table, "c")
    assert code(error) is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    opened(table, "b")
    assert len(table) == 2


def test_closed_connection_closes_its_sessions_and_no_others() -> None:
    table, closed = sessions()
    opened(table, "a", connection=1)
    opened(table, "b", connection=2)
    table.connection_closed(1)
    assert closed == ["a"]
    assert table.has_any("g")
    table.connection_closed(2)
    assert closed == ["a", "b"]
    assert not table.has_any("g")


def test_closed_connection_does_not_close_a_session_that_moved_on() -> None:
    table, closed = sessions()
    opened(table, "a", connection=1)
    opened(table, "a", connection=2)
    table.connection_closed(1)
    assert closed == []
    assert len(table) == 1


def test_session_closes_once() -> None:
    table, closed = sessions()
    session = opened(table)
    table.close(session)
    table.close(session)
    assert closed == ["a"]


def test_session_begins_with_another_partition_at_every_request() -> None:
    table, _ = sessions()
    session = opened(table)
    session.add((TOPIC, index) for index in range(3))
    indexes = [[index for _, index in session.rotated(epoch)] for epoch in range(4)]
    assert indexes == [[0, 1, 2], [2, 0, 1], [1, 2, 0], [0, 1, 2]]
    session.remove([(TOPIC, 1), (TOPIC, 9)])
    assert sorted(session.rotated(1)) == [(TOPIC, 0), (TOPIC, 2)]
    session.remove([(TOPIC, 0), (TOPIC, 2)])
    assert session.rotated(2) == []
