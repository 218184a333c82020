"""Kafka's notation of principals."""

from __future__ import annotations

import pytest

from millstream.security.principal import ANONYMOUS, Principal


@pytest.mark.parametrize("text", ["User:alice", "User:CN=host,O=a:b", "User:*"])
def test_notation_is_read_back(text: str) -> None:
    assert str(Principal.parse(text)) == text


def test_name_may_contain_colons() -> None:
    assert Principal.parse("User:a:b") == Principal("User", "a:b")


@pytest.mark.parametrize("text", ["alice", "User:", ":alice", ""])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="type:name"):
        Principal.parse(text)


def test_anonymous_is_a_user() -> None:
    assert str(ANONYMOUS) == "User:ANONYMOUS"
