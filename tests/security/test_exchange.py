"""What clients and logs learn of a failed authentication."""

from __future__ import annotations

from millstream.security.exchange import AuthenticationFailed, wrong_credentials


def test_client_learns_less_than_the_log() -> None:
    unknown = wrong_credentials("SCRAM-SHA-256", "no such user", "mallory")
    wrong = wrong_credentials("SCRAM-SHA-256", "wrong password", "alice")
    assert unknown.message == wrong.message == str(wrong)
    assert (unknown.reason, unknown.user) == ("no such user", "mallory")


def test_reason_is_the_message_unless_there_is_more_to_say() -> None:
    assert AuthenticationFailed("no mechanism").reason == "no mechanism"
