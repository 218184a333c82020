"""`sasl.jaas.config`, as Java's users write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.security.jaas import parse_jaas

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_users_and_login() -> None:
    config = parse_jaas(
        f"""{PLAIN} required
            username="broker" password="b,=; \\"q\\" \\\\"  // the broker's own
            user_alice='wonder"land' /* and */ user_bob=plain=word
            user_broker="x";
        """
    )
    assert config.module == "PlainLoginModule"
    assert config.login == ("broker", 'b,=; "q" \\')
    assert config.users == {"alice": 'wonder"land', "bob": "plain=word", "broker": "x"}


@pytest.mark.parametrize(
    "text", [f"{PLAIN} required;", f"{PLAIN} REQUIRED", f" {PLAIN}\nrequired ; "]
)
def test_module_without_options(text: str) -> None:
    config = parse_jaas(text)
    assert config.login is None
    assert config.users == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a login module"),
        (";", "a login module"),
        (PLAIN, "a flag"),
        (f"{PLAIN} always;", "one of required"),
        (f"{PLAIN} required username;", 'username="value"'),
        (f'{PLAIN} required username="a" password="secret', 'password="value"'),
        (f'{PLAIN} required password="secret"; {PLAIN} required;', "one login module"),
        (f'{PLAIN} required "secret"=a;', "the name of an option"),
    ],
)
def test_error_says_what_is_expected_and_shows_no_password(text: str, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_jaas(text)
    assert f"expected {expected}" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_repr_shows_no_password() -> None:
    assert "secret" not in repr(parse_jaas(f'{PLAIN} required password="secret" user_a="secret";'))


@given(st.text())
def test_any_quoted_value_is_read_back(value: str) -> None:
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_jaas(f'{PLAIN} required user_a="{quoted}" user_b="c";').users == {
        "a": value,
        "b": "c",
    }
