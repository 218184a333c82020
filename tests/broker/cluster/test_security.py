"""Settings of the connection to ZooKeeper: what works, and errors that name the setting."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from millstream.broker.cluster.security import Access, ZooKeeperSecurity, security_of
from millstream.broker.security.tls import client_context
from millstream.config.broker import BrokerConfig
from millstream.errors import ConfigError
from tests.peers.secured import Certificates

JAAS = "org.apache.zookeeper.server.auth.DigestLoginModule required username=a password=top-secret;"


def security(**values: object) -> ZooKeeperSecurity:
    names = {name.replace("_", "."): value for name, value in values.items()}
    return security_of(BrokerConfig.from_values(names), client_context)


def test_nothing_is_secured_by_default() -> None:
    found = security()
    assert (found.tls, found.login, found.sets_acls) == (None, None, False)
    assert found.access("/millstream/metadata/head") is Access.OPEN


def test_metadata_is_private_and_membership_readable() -> None:
    found = security(zookeeper_set_acl="true", millstream_zookeeper_sasl_jaas_config=JAAS)
    assert found.login == ("a", "top-secret")
    assert "top-secret" not in repr(found)
    assert found.access("/millstream/metadata/log/0000000001") is Access.PRIVATE
    assert found.access("/brokers/ids/1") is Access.READABLE
    assert found.access("") is Access.READABLE


def test_certificate_is_an_identity_too(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    tls = {
        "zookeeper_ssl_client_enable": "true",
        "zookeeper_ssl_truststore_location": certificates.authority,
    }
    keystore = certificates.sign("broker")
    found = security(zookeeper_set_acl="true", zookeeper_ssl_keystore_location=keystore, **tls)
    assert found.tls is not None
    assert found.tls().check_hostname
    unchecked = security(zookeeper_ssl_endpoint_identification_algorithm="", **tls)
    assert unchecked.tls is not None
    assert not unchecked.tls().check_hostname
    assert unchecked.tls().verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(ConfigError, match=r"zookeeper\.set.acl needs an identity"):
        security(zookeeper_set_acl="true", **tls)
    with pytest.raises(ConfigError, match=r"zookeeper\.set.acl needs an identity"):
        security(zookeeper_set_acl="true", zookeeper_ssl_keystore_location=keystore)


@pytest.mark.parametrize(
    ("jaas", "reason"),
    [
        ("x", "millstream.zookeeper.sasl.jaas.config is not as Java writes it"),
        ("PlainLoginModule required username=a password=top-secret;", "DigestLoginModule required"),
        ("DigestLoginModule required username=a;", "DigestLoginModule required"),
    ],
)
def test_bad_login_is_refused_without_its_password(jaas: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as refused:
        security(millstream_zookeeper_sasl_jaas_config=jaas)
    assert "top-secret" not in str(refused.value)


def test_files_that_cannot_be_used_are_named_with_their_setting(tmp_path: Path) -> None:
    missing = tmp_path / "ssl.missing"
    for store in ("keystore", "truststore"):
        settings = {f"zookeeper_ssl_{store}_location": missing}
        with pytest.raises(ConfigError) as refused:
            security(zookeeper_ssl_client_enable="true", **settings)
        wanted = f"zookeeper.ssl.{store}.location {missing}: No such file or directory"
        assert str(refused.value) == wanted
    java = tmp_path / "store.jks"
    java.write_bytes(b"\xfe\xed\xfe\xed rest")
    with pytest.raises(ConfigError, match=r"set zookeeper\.ssl\.truststore\.type=PEM"):
        security(zookeeper_ssl_client_enable="true", zookeeper_ssl_truststore_location=java)
