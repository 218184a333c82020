"""Which settings of security are taken, and which are refused, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.client.cluster import Cluster, TopicInfo
from millstream.client.connection import Connection
from millstream.client.security import Security
from millstream.errors import ApiError, ConfigError
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.secure_kafka import PASSWORD, USER, SecureKafka, start_secure_kafka


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
        ({"sasl.jaas.config": "x.Krb5LoginModule required;"}, "uses Krb5LoginModule; only"),
        ({"sasl.jaas.config": "x.PlainLoginModule required;"}, "has no username and password"),
        ({"ssl.trust": "x"}, "unknown setting ssl.trust"),
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


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    running = start_secure_kafka(tmp_path_factory.mktemp("secure"))
    yield running
    running.stop()


def topics_at(bootstrap: str, settings: dict[str, str]) -> dict[str, TopicInfo]:
    with Cluster(bootstrap, security=settings, timeout_seconds=PATIENCE_SECONDS) as cluster:
        return cluster.retrying(lambda: cluster.refresh(None))


@pytest.mark.java
def test_security_meets_a_broker_that_asks_for_certificates(kafka: SecureKafka) -> None:
    trusting = {"security.protocol": "SSL", "ssl.ca.location": str(kafka.authority)}
    known = trusting | {"ssl.certificate.location": str(kafka.client)}
    assert topics_at(kafka.ssl_bootstrap, known) == {}
    java = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": kafka.authority.read_text(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(kafka.client),
    }
    assert topics_at(kafka.ssl_bootstrap, java) == {}
    with pytest.raises(ConfigError, match=r"wants a certificate of its clients.*; set ssl.cert"):
        topics_at(kafka.ssl_bootstrap, trusting)
    with pytest.raises(ConfigError, match=r"certificate is not trusted.*; set ssl.ca.location"):
        topics_at(kafka.ssl_bootstrap, {"security.protocol": "SSL"})
    with pytest.raises(OSError, match=r"ended TLS .*; a listener without TLS does so"):
        Connection(("127.0.0.1", kafka.server.port), security=Security.from_settings(known))


@pytest.mark.java
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_security_meets_a_broker_that_asks_for_passwords(
    kafka: SecureKafka, mechanism: str
) -> None:
    settings = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(kafka.authority),
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
    }
    assert topics_at(kafka.sasl_bootstrap, settings | {"sasl.password": PASSWORD}) == {}
    with pytest.raises(ApiError, match="SASL_AUTHENTICATION_FAILED"):
        topics_at(kafka.sasl_bootstrap, settings | {"sasl.password": "wrong"})


@pytest.mark.java
def test_security_names_the_mechanisms_that_the_broker_offers(kafka: SecureKafka) -> None:
    settings = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(kafka.authority),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": USER,
        "sasl.password": PASSWORD,
    }
    with pytest.raises(
        ApiError, match=r"does not support SASL mechanism SCRAM-SHA-512; .*SCRAM-SHA-256"
    ):
        topics_at(kafka.sasl_bootstrap, settings)
    with pytest.raises(OSError, match=r"a listener that expects TLS .*security.protocol"):
        Connection(
            ("127.0.0.1", int(kafka.ssl_bootstrap.rpartition(":")[2])),
            timeout_seconds=PATIENCE_SECONDS,
        )
