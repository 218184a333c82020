"""Which settings of security are taken, and which are refused, in words."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives import serialization

from millstream.client import connection as connection_module
from millstream.client.cluster import Cluster, TopicInfo
from millstream.client.connection import Connection, ConnectionLost
from millstream.client.security import Security, read_connection
from millstream.errors import ApiError, ConfigError
from millstream.security.certificates import make_authority
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.secured import Secured, start_secured
from tests.peers.secured_clients import KINDS, settings_of

SESSION_MS = 3000


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
    assert security.login().begin().startswith(b"n,,n=ann,r=")


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
    with pytest.raises(ConfigError, match=r"ssl.ca.location \(inline\)"):
        Security("SSL", ca_certificates="é").tls_context()
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
        ({"ssl.trust": "x"}, "unknown setting ssl.trust; known settings: security.protocol"),
        ({"sasl.user": "x"}, "unknown setting sasl.user; did you mean sasl.username"),
        ({"sasl.kerberos.kinit.cmd": "x"}, "Kerberos is not supported"),
        ({"ssl.truststore.password": "x"}, "use ssl.truststore.type=PEM"),
        ({"enable.ssl.certificate.verification": "no"}, "must be true or false"),
        ({"ssl.endpoint.identification.algorithm": "htps"}, "it must be https, or none"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "MAGIC"},
            "MAGIC; it must be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER",
        ),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url",
        ),
        ({"sasl.oauthbearer.extensions": "x"}, "write name=value,name=value"),
        ({"security.protocol": "TLS"}, "must be one of PLAINTEXT, SSL"),
        ({"security.protocol": "SASL_SSL"}, "needs a sasl.mechanism"),
    ],
)
def test_security_refuses_what_does_not_fit(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Security.from_settings(settings)


def test_repr_and_errors_contain_no_secrets() -> None:
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.password": "s3cret",
        "ssl.key.pem": "s3cret",
        "ssl.key.password": "s3cret",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "s3cret",
        "sasl.oauthbearer.token.endpoint.url": "https://host/token",
    }
    assert "s3cret" not in repr(Security.from_settings(given))
    with pytest.raises(ConfigError) as refused:
        Security.from_settings(given | {"security.protocol": "SSL"})
    assert "s3cret" not in str(refused.value)


def test_settings_mean_the_same_in_all_names() -> None:
    """From librdkafka's names to Java's and back; a password of all that has to be escaped."""
    given = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/me.pem",
        "ssl.key.password": "x",
        "ssl.endpoint.identification.algorithm": "none",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "a n",
        "sasl.password": "\\\"';= #x",
    }
    security = Security.from_settings(given)
    java = security.java()
    assert java["sasl.jaas.config"].startswith(
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
    )
    assert Security.from_settings(java) == security
    rdkafka = security.librdkafka()
    assert rdkafka["ssl.key.location"] == "/me.pem"
    assert Security.from_settings(rdkafka) == replace(security, key_location="/me.pem")
    assert Security().librdkafka() == {"security.protocol": "PLAINTEXT"}


def test_tokens_mean_the_same_in_javas_names() -> None:
    given = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "https://host/token",
        "sasl.oauthbearer.client.id": "me",
        "sasl.oauthbearer.client.secret": "s3cret",
        "sasl.oauthbearer.scope": "all",
    }
    security = Security.from_settings(given)
    assert Security.from_settings(security.java()) == security
    assert "oauth_cb" in security.librdkafka()
    options = security.options()
    assert options["kafka.sasl.oauthbearer.client.secret"] == "s3cret"
    again = {name.removeprefix("kafka."): value for name, value in options.items()}
    assert Security.from_settings(again) == security


def test_java_cannot_do_everything() -> None:
    apart = Security("SSL", certificate_location="/a.pem", key_location="/a.key")
    with pytest.raises(ConfigError, match="from one file: join them"):
        apart.java()
    with pytest.raises(ConfigError, match="Java clients always check certificates"):
        Security("SSL", checks_certificate=False).java()


def test_inline_certificates_are_used_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    now = datetime.now(UTC)
    authority = make_authority("authority", now)
    signed = authority.sign("ann", now)
    one_line = {name: text.replace("\n", "\\n") for name, text in vars(signed).items()}
    for key, certificate in (
        (signed.key, signed.certificate),
        (one_line["key"], one_line["certificate"]),
    ):
        security = Security.from_settings(
            {
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": authority.certificate,
                "ssl.keystore.type": "PEM",
                "ssl.keystore.key": key,
                "ssl.keystore.certificate.chain": certificate,
            }
        )
        assert len(security.tls_context().get_ca_certs()) == 1
    assert not list(tmp_path.iterdir())


def test_key_with_a_password_needs_it_and_does_not_ask(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    signed = make_authority("authority", now).sign("ann", now)
    key = serialization.load_pem_private_key(signed.key.encode(), None)
    sealed = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"s3cret"),
    )
    file = tmp_path / "ann.pem"
    file.write_bytes(sealed + signed.certificate.encode())
    settings = {"security.protocol": "SSL", "ssl.certificate.location": str(file)}
    Security.from_settings(settings | {"ssl.key.password": "s3cret"}).tls_context()
    for wrong in ({}, {"ssl.key.password": "wrong"}):
        with pytest.raises(ConfigError, match=r"ssl.certificate.location .*ann.pem"):
            Security.from_settings(settings | wrong).tls_context()


def test_file_of_settings_has_others_too(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=host:9093\nlinger.ms=5\nsecurity.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={tmp_path}/ca.pem\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="ann" password="s\\\\"x";\n'
    )
    security = Security.from_file(file)
    assert (security.username, security.password) == ("ann", 's"x')
    assert read_connection(file) == (
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "ssl.ca.location": f"{tmp_path}/ca.pem",
            "sasl.username": "ann",
            "sasl.password": 's"x',
        },
        "host:9093",
    )


@pytest.fixture(scope="module", params=KINDS)
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    running = start_secured(
        request.param,
        tmp_path_factory.mktemp("secured"),
        ["ann"],
        {"connections.max.reauth.ms": str(SESSION_MS)},
    )
    running.add_scram_user("ann")
    yield running
    running.stop()


def topics_at(bootstrap: str, settings: Mapping[str, str]) -> dict[str, TopicInfo]:
    with Cluster(bootstrap, security=settings, timeout_seconds=PATIENCE_SECONDS) as cluster:
        return cluster.retrying(lambda: cluster.refresh(None))


def test_client_shows_a_certificate_where_it_is_asked_for(secured: Secured) -> None:
    bootstrap = secured.address("SSL")
    authority = secured.certificates.authority
    store = secured.certificates.sign("me")
    trusting = {"security.protocol": "SSL", "ssl.ca.location": str(authority)}
    known = trusting | {"ssl.certificate.location": str(store)}
    assert topics_at(bootstrap, known) == {}
    java = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": authority.read_text(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
    }
    assert topics_at(bootstrap, java) == {}
    # Apache Kafka says so in an alert of TLS; asyncio only closes the connection.
    with pytest.raises((ConfigError, ConnectionLost), match=r"wants a certificate of its clients"):
        Connection(("127.0.0.1", secured.ports["SSL"]), security=Security.from_settings(trusting))
    with pytest.raises(ConfigError, match=r"certificate is not trusted.*; set ssl.ca.location"):
        topics_at(bootstrap, {"security.protocol": "SSL"})
    unencrypted = ("127.0.0.1", secured.ports["PLAINTEXT"])
    with pytest.raises(OSError, match=r"ended TLS .*; a listener without TLS does so"):
        Connection(unencrypted, security=Security.from_settings(known))
    with pytest.raises(OSError, match=r"a listener that expects TLS .*security.protocol"):
        Connection(("127.0.0.1", secured.ports["SSL"]), timeout_seconds=PATIENCE_SECONDS)


def test_new_certificates_are_used_by_new_connections(secured: Secured) -> None:
    """The files are read for each connection: no client has to be restarted."""
    store = secured.certificates.sign("renewed", expired=True)
    security = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.certificates.authority),
        "ssl.certificate.location": str(store),
    }
    with Cluster(
        secured.address("SSL"), security=security, timeout_seconds=PATIENCE_SECONDS
    ) as cluster:
        with pytest.raises((OSError, ConfigError)):
            cluster.refresh(None)
        secured.certificates.sign("renewed")
        assert cluster.retrying(lambda: cluster.refresh(None)) == {}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("listener", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_client_authenticates_with_a_password(
    secured: Secured, mechanism: str, listener: str
) -> None:
    settings = settings_of(secured, "ann", mechanism, listener)
    if listener == "SASL_PLAINTEXT":
        del settings["ssl.ca.location"]
    assert topics_at(secured.address(listener), settings) == {}
    with pytest.raises(ApiError, match="SASL_AUTHENTICATION_FAILED") as refused:
        topics_at(secured.address(listener), settings | {"sasl.password": "wr0ng"})
    assert "wr0ng" not in str(refused.value)


def test_client_authenticates_with_a_token(secured: Secured, tmp_path: Path) -> None:
    file = tmp_path / "token"
    settings = {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(secured.certificates.authority),
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }
    file.write_text(secured.issuer.token("ann"))
    assert topics_at(secured.address("SASL_SSL"), settings) == {}
    admin = AdminClient(
        Security.from_settings(settings).librdkafka()
        | {"bootstrap.servers": secured.address("SASL_SSL"), "log_level": 0}
    )
    assert admin.list_topics(timeout=PATIENCE_SECONDS).topics == {}
    file.write_text(secured.issuer.token("ann", aud="others"))
    with pytest.raises(ApiError, match="SASL_AUTHENTICATION_FAILED"):
        topics_at(secured.address("SASL_SSL"), settings)


def test_client_learns_which_mechanisms_there_are(secured: Secured, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a.b.c")
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": token.as_uri(),
    }
    with pytest.raises(
        ApiError, match=r"does not support SASL mechanism OAUTHBEARER; .*SCRAM-SHA-256"
    ):
        topics_at(secured.address("SASL_PLAINTEXT"), settings)


def test_session_is_renewed_before_it_ends(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with requests in flight, whose responses must not get lost."""
    # Early, so that a busy machine does not delay a request until after the end; brokers refuse to
    # authenticate again within a second.
    monkeypatch.setattr(connection_module, "RENEWAL_SHARE", (0.4, 0.5))
    settings = settings_of(secured, "ann", "SCRAM-SHA-512")
    address = ("127.0.0.1", secured.ports["SASL_SSL"])
    security = Security.from_settings(settings)
    with Connection(address, security=security, timeout_seconds=PATIENCE_SECONDS) as connection:
        version = connection.version_for("metadata")
        started, answers = time.monotonic(), 0
        while time.monotonic() - started < 1.5 * SESSION_MS / 1000:
            for _ in range(3):
                connection.send_fields("metadata", version, {"topics": []})
                time.sleep(0.05)
            found = [type(connection.receive()).__name__ for _ in range(3)]
            assert found == ["MetadataResponse"] * 3
            answers += 3
        assert connection.is_idle
    assert answers > 3


@pytest.mark.slow
def test_session_that_ended_while_idle_is_renewed(secured: Secured) -> None:
    address = ("127.0.0.1", secured.ports["SASL_SSL"])
    security = Security.from_settings(settings_of(secured, "ann"))
    with Connection(address, security=security, timeout_seconds=PATIENCE_SECONDS) as connection:
        time.sleep(1.5 * SESSION_MS / 1000)
        assert connection.call("metadata", {"topics": []}).brokers
