"""Settings of the authorizer."""

from __future__ import annotations

import pytest

from millstream.config.authorization import STANDARD_AUTHORIZER, super_users
from millstream.config.broker import BrokerConfig
from millstream.errors import ConfigError


@pytest.mark.parametrize("name", [STANDARD_AUTHORIZER, "StandardAuthorizer"])
def test_authorizer_is_kafkas(name: str) -> None:
    assert BrokerConfig.from_values({"authorizer.class.name": name}).has_authorizer


def test_there_is_no_authorizer_unless_it_is_asked_for() -> None:
    assert not BrokerConfig.from_values({}).has_authorizer
    assert not BrokerConfig.from_values({"authorizer.class.name": ""}).has_authorizer


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("authorizer.class.name", "com.example.Mine", "com.example.Mine.*only.*is built in"),
        ("super.users", "admin", "write it as type:name"),
        ("super.users", "User:a;b", "write it as type:name"),
        ("millstream.audit.log", "audit.log", "file:PATH or topic:NAME"),
        ("millstream.audit.log", "file:", "file:PATH or topic:NAME"),
        ("millstream.audit.log", "topic:__consumer_offsets", "does not begin with __"),
        ("millstream.audit.log", "topic:a b", "a b is not the name of a topic"),
        ("millstream.audit.log", "topic:..", "is not the name of a topic"),
    ],
)
def test_wrong_value_is_refused(name: str, value: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        BrokerConfig.from_values({name: value})


@pytest.mark.parametrize("place", ["topic:audit", "topic:a._-1", "topic:..a", "file:__a b"])
def test_audit_may_go_there(place: str) -> None:
    config = BrokerConfig.from_values({"millstream.audit.log": place})
    assert config.millstream_audit_log == place


def test_super_users_are_separated_by_semicolons() -> None:
    text = "User:admin; User:CN=broker,O=x ;"
    assert super_users(text) == {"User:admin", "User:CN=broker,O=x"}
    assert super_users("") == frozenset()
