"""TLS and authentication: settings of the broker, of a listener, of a mechanism."""

from __future__ import annotations

import pytest

from millstream.config.broker import BROKER_SETTINGS, BrokerConfig, check_dynamic, find
from millstream.config.security import find_listener_setting
from millstream.errors import ConfigError
from millstream.security.protocol import SecurityProtocol

TWO_LISTENERS = {
    "listeners": "EXTERNAL://127.0.0.1:1,INTERNAL://127.0.0.1:2",
    "listener.security.protocol.map": "external:SASL_SSL, INTERNAL:SSL",
}


def test_listeners_have_the_protocols_of_the_map() -> None:
    config = BrokerConfig.from_values(TWO_LISTENERS)
    assert config.listener_protocols["EXTERNAL"] is SecurityProtocol.SASL_SSL
    assert config.listener_protocols["INTERNAL"] is SecurityProtocol.SSL


def test_setting_of_a_listener_wins_there_and_nowhere_else() -> None:
    config = BrokerConfig.from_values(
        {
            **TWO_LISTENERS,
            "ssl.keystore.location": "/all.pem",
            "listener.name.internal.ssl.keystore.location": "/internal.pem",
        }
    )
    assert config.listener_settings("INTERNAL").ssl_keystore_location == "/internal.pem"
    assert config.listener_settings("EXTERNAL").ssl_keystore_location == "/all.pem"


def test_setting_of_a_mechanism_wins_over_that_of_its_listener() -> None:
    config = BrokerConfig.from_values(
        {
            **TWO_LISTENERS,
            "sasl.jaas.config": "all required",
            "listener.name.external.sasl.jaas.config": "listener required",
            "listener.name.external.scram-sha-256.sasl.jaas.config": "mechanism required",
        }
    )
    found = config.listener_settings("EXTERNAL", "SCRAM-SHA-256").sasl_jaas_config
    assert found == "mechanism required"
    assert config.listener_settings("EXTERNAL", "PLAIN").sasl_jaas_config == "listener required"
    assert config.listener_settings("INTERNAL", "PLAIN").sasl_jaas_config == "all required"


def test_client_certificates_of_a_sasl_listener_need_its_prefix() -> None:
    values = {**TWO_LISTENERS, "ssl.client.auth": "required"}
    config = BrokerConfig.from_values(values)
    assert config.listener_settings("EXTERNAL").ssl_client_auth == "none"
    assert config.listener_settings("INTERNAL").ssl_client_auth == "required"
    own = BrokerConfig.from_values(
        {**values, "listener.name.external.ssl.client.auth": "requested"}
    )
    assert own.listener_settings("EXTERNAL").ssl_client_auth == "requested"


def test_dynamic_setting_of_a_listener_is_in_force() -> None:
    name = "listener.name.internal.ssl.keystore.location"
    check_dynamic([name], per_broker=True)
    config = BrokerConfig.from_values(TWO_LISTENERS).with_dynamic({}, {name: "/new.pem"})
    assert config.listener_settings("INTERNAL").ssl_keystore_location == "/new.pem"
    with pytest.raises(ConfigError, match="Cannot update these configs dynamically"):
        check_dynamic([name], per_broker=False)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"listener.name.internal.no.such": "1"}, "Unknown setting"),
        ({"listener.name.internal": "1"}, "Unknown setting"),
        ({"listener.name.other.ssl.client.auth": "none"}, "there is no listener OTHER"),
        ({"listener.name.internal.ssl.client.auth": "maybe"}, "String must be one of"),
        ({"ssl.enabled.protocols": "TLSv1"}, "String must be one of: TLSv1.2, TLSv1.3"),
        ({"listener.security.protocol.map": "EXTERNAL:TLS,INTERNAL:SSL"}, "NAME:PROTOCOL"),
        ({"listener.security.protocol.map": "EXTERNAL:SSL"}, "listener INTERNAL is not in"),
        ({"security.inter.broker.protocol": "PLAINTEXT"}, "no listener has it"),
        ({"ssl.keystore.locaton": "x"}, "Did you mean 'ssl.keystore.location'"),
        (
            {"inter.broker.listener.name": "INTERNAL", "security.inter.broker.protocol": "SSL"},
            "Only one of",
        ),
    ],
)
def test_wrong_settings_are_refused(values: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.from_values({**TWO_LISTENERS, **values})


def test_listener_of_brokers_is_the_one_with_their_protocol() -> None:
    config = BrokerConfig.from_values({**TWO_LISTENERS, "security.inter.broker.protocol": "SSL"})
    assert config.inter_broker_listener == "INTERNAL"


def test_names_of_listeners_are_taken_apart() -> None:
    found = find_listener_setting("listener.name.a.plain.sasl.jaas.config")
    assert (found.listener, found.mechanism) == ("A", "PLAIN")
    assert found.setting.sensitive
    assert find_listener_setting("listener.name.a.ssl.protocol").mechanism is None


def test_secrets_are_sensitive_and_nowhere_shown() -> None:
    secrets = {name for name, it in BROKER_SETTINGS.items() if it.sensitive}
    assert secrets >= {
        "sasl.jaas.config",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.truststore.certificates",
        "ssl.truststore.password",
    }
    values = dict.fromkeys(secrets, "hunter2")
    config = BrokerConfig.from_values(values)
    assert "hunter2" not in repr(config) + str(config) + repr(config.listener_settings("PLAINTEXT"))
    assert find(BROKER_SETTINGS, "listener.name.x.ssl.key.password").sensitive


def test_check_of_host_names_is_not_turned_off_by_a_typing_error() -> None:
    name = "ssl.endpoint.identification.algorithm"
    for value in ("https", "none", ""):
        assert (
            BrokerConfig.from_values({name: value}).ssl_endpoint_identification_algorithm == value
        )
    with pytest.raises(ConfigError, match=r"Invalid value htps .*must be one of: https, none"):
        BrokerConfig.from_values({name: "htps"})
