"""Which settings of security are taken, and which are refused, in words."""

from __future__ import annotations

import pytest

from millstream.client.security import Security
from millstream.errors import ConfigError


def test_security_takes_the_settings_of_kafka_clients() -> None:
    security = Security.from_settings(
        {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "ann",
            "sasl.password": "secret",
            "ssl.endpoint.identification.algorithm": "none",
        }
    )
    assert security.uses_tls
    assert security.uses_sasl
    assert not security.tls_context().check_hostname
    assert security.sasl_mechanism("host").auth_bytes().startswith(b"n,,n=ann,r=")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"ssl.trust": "x"}, "ssl.trust is not known here"),
        ({"security.protocol": "TLS"}, "must be one of PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "needs a sasl.mechanism"),
    ],
)
def test_security_refuses_what_does_not_fit(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Security.from_settings(settings)


def test_security_names_the_mechanisms_there_are() -> None:
    security = Security.from_settings(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "MAGIC"}
    )
    with pytest.raises(ConfigError, match=r"MAGIC; it must be one of .*PLAIN.*SCRAM-SHA-256"):
        security.sasl_mechanism("host")
