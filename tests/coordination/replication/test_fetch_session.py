"""Sessions of a follower: what is sent, and when all of it is sent again."""

from __future__ import annotations

import pytest

from millstream.coordination.replication.fetch_session import (
    EPOCH_MAX,
    FollowerSession,
    SessionRequest,
)
from millstream.coordination.replication.follower import FetchPosition
from millstream.errors import ErrorCode

A, B, C = FetchPosition(1, 0, 0, 0), FetchPosition(2, 0, 0, 0), FetchPosition(3, 0, 0, 0)


def opened() -> FollowerSession[str]:
    """Session 7 with a and b."""
    session: FollowerSession[str] = FollowerSession()
    session.fetch("a", A)
    session.fetch("b", B)
    assert session.next_request() == (0, 0, {"a": A, "b": B}, ())
    session.answered(7, 0)
    return session


def test_request_has_only_what_changed() -> None:
    session = opened()
    session.fetch("a", A)
    assert session.next_request() == (7, 1, {}, ())
    session.answered(7, 0)
    session.fetch("a", C)
    session.fetch("c", C)
    session.leave_out("b")
    session.leave_out("unknown")
    assert session.next_request() == (7, 2, {"a": C, "c": C}, ("b",))
    session.answered(7, 0)
    assert session.next_request() == (7, 3, {}, ())
    assert session.keys() == {"a", "c"}


def test_partition_that_is_left_out_and_fetched_again_is_sent_and_not_forgotten() -> None:
    session = opened()
    session.leave_out("a")
    session.fetch("a", A)
    assert session.next_request() == (7, 1, {"a": A}, ())


def test_partition_that_is_added_and_left_out_at_once_is_not_sent() -> None:
    session = opened()
    session.fetch("c", C)
    session.leave_out("c")
    assert session.next_request().positions == {}


@pytest.mark.parametrize(
    ("error", "closed"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 7),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 7),
        (ErrorCode.UNKNOWN_SERVER_ERROR, 7),
    ],
)
def test_error_opens_another_session(error: ErrorCode, closed: int) -> None:
    session = opened()
    session.fetch("a", C)
    session.leave_out("b")
    session.next_request()
    session.answered(0, error)
    assert session.next_request() == (closed, 0, {"a": C}, ())
    session.answered(8, 0)
    assert session.next_request() == (8, 1, {}, ())


def test_request_without_an_answer_opens_another_session() -> None:
    session = opened()
    session.fetch("a", C)
    session.next_request()
    session.lost()
    assert session.next_request() == (7, 0, {"a": C, "b": B}, ())


def test_changes_during_a_first_request_are_in_the_second() -> None:
    session = opened()
    session.send_again()
    assert session.next_request().session_epoch == 0
    session.leave_out("b")
    session.fetch("a", C)
    session.answered(8, 0)
    assert session.next_request() == (8, 1, {"a": C}, ("b",))


def test_leader_without_sessions_gets_everything_each_time() -> None:
    session: FollowerSession[str] = FollowerSession()
    session.fetch("a", A)
    for _ in range(2):
        assert session.next_request() == SessionRequest(0, 0, {"a": A}, ())
        session.answered(0, 0)


def test_answer_of_another_session_or_of_none_is_not_trusted() -> None:
    for answered, closed in ((9, 7), (0, 0)):
        session = opened()
        session.next_request()
        session.answered(answered, 0)
        assert session.next_request() == (closed, 0, {"a": A, "b": B}, ())


def test_epoch_begins_again_at_one() -> None:
    session = opened()
    session._epoch = EPOCH_MAX
    session.next_request()
    session.answered(7, 0)
    assert session.next_request().session_epoch == 1
