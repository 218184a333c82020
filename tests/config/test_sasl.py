"""What the SASL mechanisms of listeners need."""

from __future__ import annotations

import pytest

from millstream.config.broker import BrokerConfig
from millstream.config.sasl import check_jwks_url, jaas_of
from millstream.errors import ConfigError

LISTENERS = {"listeners": "SASL_PLAINTEXT://127.0.0.1:1,PLAINTEXT://127.0.0.1:2"}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
PREFIX = "listener.name.sasl_plaintext"


def with_settings(settings: dict[str, str]) -> BrokerConfig:
    return BrokerConfig.from_values(LISTENERS | settings)


def test_scram_needs_no_settings() -> None:
    settings = with_settings({}).listener_settings("SASL_PLAINTEXT")
    assert settings.sasl_enabled_mechanisms == ("SCRAM-SHA-256", "SCRAM-SHA-512")


def test_users_of_plain() -> None:
    made = with_settings(
        {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            f"{PREFIX}.plain.sasl.jaas.config": f'{PLAIN} required user_alice="wonderland";',
        }
    )
    jaas = jaas_of("PLAIN", made.listener_settings("SASL_PLAINTEXT", "PLAIN"))
    assert jaas is not None
    assert jaas.users == {"alice": "wonderland"}
    assert (
        jaas_of("SCRAM-SHA-256", made.listener_settings("SASL_PLAINTEXT", "SCRAM-SHA-256")) is None
    )


def test_module_of_another_mechanism_does_not_count() -> None:
    made = with_settings({"sasl.jaas.config": f'{PLAIN} required username="a" password="b";'})
    settings = made.listener_settings("SASL_PLAINTEXT", "SCRAM-SHA-256")
    assert jaas_of("SCRAM-SHA-256", settings) is None


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"sasl.enabled.mechanisms": ""}, "sasl.enabled.mechanisms of listener .* is empty"),
        (
            {"sasl.enabled.mechanisms": "GSSAPI"},
            "GSSAPI, which is not supported; choose from PLAIN",
        ),
        ({"sasl.enabled.mechanisms": "scram-sha-256"}, "scram-sha-256, which is not supported"),
        ({"sasl.enabled.mechanisms": "PLAIN"}, f"no users: set {PREFIX}.plain.sasl.jaas.config="),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": f"{SCRAM} required;"},
            "PLAIN of listener SASL_PLAINTEXT has no users",
        ),
        ({"sasl.jaas.config": f'{SCRAM} required password="secret'}, "not as Java writes it"),
        ({"sasl.enabled.mechanisms": "OAUTHBEARER"}, "needs the keys that sign tokens: set sasl"),
        (
            {
                "sasl.enabled.mechanisms": "OAUTHBEARER",
                "sasl.oauthbearer.jwks.endpoint.url": "http://id.example/keys",
            },
            "must begin with https://",
        ),
        ({f"{PREFIX}.sasl.server.callback.handler.class": "com.example.Mine"}, "must be one of"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        with_settings(settings)
    assert "secret" not in str(refused.value)


def test_listeners_without_sasl_are_not_checked() -> None:
    BrokerConfig.from_values({"sasl.enabled.mechanisms": "GSSAPI"})


@pytest.mark.parametrize(
    "url",
    [
        "http://id.example/keys",
        "https:///keys",
        "ftp://id.example/keys",
        "keys.json",
        "http://[",
        "https://user:secret@id.example/keys",
    ],
)
def test_urls_of_keys_that_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url") as refused:
        check_jwks_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["https://id.example/keys", "file:///etc/keys.json", "http://localhost:8080/keys"]
)
def test_urls_of_keys(url: str) -> None:
    assert check_jwks_url(url) == url
