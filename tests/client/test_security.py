"""Which settings of security are taken, and which are refused, in words."""

from __future__ import annotations

from pathlib import Path

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


def test_security_understands_what_java_clients_call_the_same() -> None:
    security = Security.from_settings(
        {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/ca.pem",
            "ssl.keystore.type": "pem",
            "ssl.keystore.location": "/me.pem",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
            'username="a\\"b" password=plain;',
        }
    )
    assert (security.ca_location, security.certificate_location) == ("/ca.pem", "/me.pem")
    assert (security.username, security.password) == ('a"b', "plain")


def test_security_names_files_that_cannot_be_used(tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"ssl.ca.location .*nonsense.pem"):
        Security("SSL", ca_location=str(nonsense)).tls_context()
    with pytest.raises(ConfigError, match=r"ssl.certificate.location .*missing.pem"):
        Security("SSL", certificate_location=str(tmp_path / "missing.pem")).tls_context()


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"sasl.mechanism": "PLAIN"}, "but security.protocol is PLAINTEXT; set it to SASL_SSL"),
        ({"ssl.ca.location": "x"}, "ssl.* is set, but security.protocol is PLAINTEXT"),
        ({"ssl.keystore.location": "x"}, "is a JKS store, which only Java reads; convert it"),
        ({"sasl.jaas.config": "x.Krb5LoginModule required;"}, "asks for Krb5LoginModule; only"),
        ({"sasl.jaas.config": "x.PlainLoginModule required;"}, "has no username and password"),
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
