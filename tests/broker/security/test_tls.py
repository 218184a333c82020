"""Contexts of TLS from settings and files."""

from __future__ import annotations

import logging
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from millstream.broker.security import tls as module
from millstream.broker.security.tls import TlsListener, client_context, server_context
from millstream.config.security import SecuritySettings
from millstream.errors import ConfigError
from tests.broker.pki import Pki, make_pki


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after a handshake in memory. Raises `ssl.SSLError`."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    waiting = list(ends)
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    assert not waiting
    return ends[0], ends[1]


def test_store_in_a_file_serves_tls_1_3(pki: Pki) -> None:
    settings = SecuritySettings(ssl_keystore_location=str(pki.broker_store))
    client, _ = handshake(server_context(settings), pki.client_context())
    assert client.version() == "TLSv1.3"


def test_store_in_settings_serves_too(pki: Pki) -> None:
    text = pki.broker_store.read_text()
    end = "-----END PRIVATE KEY-----\n"
    key, chain = text.split(end)
    settings = SecuritySettings(
        ssl_keystore_key=key + end,
        ssl_keystore_certificate_chain=chain,
        ssl_truststore_certificates=pki.authority_file.read_text(),
        ssl_client_auth="required",
    )
    _, server = handshake(server_context(settings), pki.client_context(with_certificate=True))
    assert dict(it for rdn in server.getpeercert()["subject"] for it in rdn) == {  # type: ignore[index, misc, union-attr]
        "commonName": "client"
    }


def test_encrypted_key_needs_its_password(pki: Pki, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(pki.broker_store.read_bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"hunter2"),
    )
    store = tmp_path / "store.pem"
    chain = pki.broker_store.read_text().partition("-----BEGIN CERTIFICATE-----")
    store.write_text(encrypted.decode() + chain[1] + chain[2])
    good = SecuritySettings(ssl_keystore_location=str(store), ssl_key_password="hunter2")
    handshake(server_context(good), pki.client_context())
    for wrong in (None, "hunter3"):
        bad = SecuritySettings(ssl_keystore_location=str(store), ssl_key_password=wrong)
        with pytest.raises(ConfigError, match=r"ssl\.key\.password") as refused:
            server_context(bad)
        assert "hunter" not in str(refused.value)


def test_versions_are_those_enabled(pki: Pki) -> None:
    settings = SecuritySettings(
        ssl_keystore_location=str(pki.broker_store), ssl_enabled_protocols=("TLSv1.2",)
    )
    client, _ = handshake(server_context(settings), pki.client_context())
    assert client.version() == "TLSv1.2"
    newer = pki.client_context()
    newer.minimum_version = ssl.TLSVersion.TLSv1_3
    with pytest.raises(ssl.SSLError):
        handshake(server_context(settings), newer)


def test_older_versions_are_refused(pki: Pki) -> None:
    settings = SecuritySettings(ssl_keystore_location=str(pki.broker_store))
    assert server_context(settings).minimum_version is ssl.TLSVersion.TLSv1_2


def test_ciphers_have_javas_names_or_openssls(pki: Pki) -> None:
    for name in ("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "ECDHE-ECDSA-AES256-GCM-SHA384"):
        settings = SecuritySettings(
            ssl_keystore_location=str(pki.broker_store),
            ssl_enabled_protocols=("TLSv1.2",),
            ssl_cipher_suites=("TLS_AES_128_GCM_SHA256", name),
        )
        client, _ = handshake(server_context(settings), pki.client_context())
        assert client.cipher() == ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2", 256)


def test_ciphers_without_forward_secrecy_are_off(pki: Pki) -> None:
    settings = SecuritySettings(ssl_keystore_location=str(pki.broker_store))
    offered = {it["name"] for it in server_context(settings).get_ciphers()}
    assert all(name.startswith(("TLS_", "ECDHE-")) for name in offered)
    assert not any("CBC" in name or name.endswith("-SHA") for name in offered)


def test_client_certificate_of_another_authority_is_refused(pki: Pki, tmp_path: Path) -> None:
    other = make_pki(tmp_path, name="other")
    settings = SecuritySettings(
        ssl_keystore_location=str(pki.broker_store),
        ssl_truststore_location=str(pki.authority_file),
        ssl_client_auth="required",
    )
    context = pki.client_context()
    context.load_cert_chain(other.client_store)
    with pytest.raises(ssl.SSLError):
        handshake(server_context(settings), context)


def test_broker_checks_the_name_of_another_one(pki: Pki) -> None:
    server = server_context(SecuritySettings(ssl_keystore_location=str(pki.broker_store)))
    trust = str(pki.authority_file)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, client_context(SecuritySettings(ssl_truststore_location=trust)), "other")
    lax = SecuritySettings(ssl_truststore_location=trust, ssl_endpoint_identification_algorithm="")
    handshake(server, client_context(lax), "other")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xfe\xed\xfe\xed\0\0\0\2", "keytool -importkeystore -srckeystore"),
        (b"0\x82\x01\x02", "keytool -importkeystore"),
        (b"not a key", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_file_that_is_no_pem_store_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    store = tmp_path / "store"
    store.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        server_context(SecuritySettings(ssl_keystore_location=str(store)))


def test_java_stores_are_refused_by_their_type(pki: Pki) -> None:
    settings = SecuritySettings(
        ssl_keystore_location=str(pki.broker_store), ssl_keystore_type="JKS"
    )
    with pytest.raises(ConfigError, match=r"JKS stores are read by Java only; convert it with"):
        server_context(settings)


def test_missing_parts_are_named(pki: Pki, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"set ssl\.keystore\.location"):
        server_context(SecuritySettings())
    gone = str(tmp_path / "gone.pem")
    with pytest.raises(ConfigError, match=r"gone\.pem: No such file"):
        server_context(SecuritySettings(ssl_keystore_location=gone))
    with pytest.raises(ConfigError, match=r"certificate\.chain"):
        server_context(SecuritySettings(ssl_keystore_key="x"))
    settings = SecuritySettings(
        ssl_keystore_location=str(pki.broker_store),
        ssl_truststore_location=gone,
        ssl_client_auth="required",
    )
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.location .*gone\.pem"):
        server_context(settings)
    with pytest.raises(ConfigError, match=r"ssl\.cipher\.suites"):
        server_context(
            SecuritySettings(
                ssl_keystore_location=str(pki.broker_store), ssl_cipher_suites=("NONE-SUCH",)
            )
        )


def test_changed_file_is_used_for_new_connections(pki: Pki, tmp_path: Path) -> None:
    store = tmp_path / "store.pem"
    store.write_text(pki.broker_store.read_text())
    settings = SecuritySettings(ssl_keystore_location=str(store))
    listener = TlsListener("SSL", settings)
    before = listener.in_use.context
    listener.refresh(settings)
    assert listener.in_use.context is before
    other = make_pki(tmp_path, name="other")
    store.write_text(other.broker_store.read_text())
    listener.refresh(settings)
    handshake(listener.in_use.context, other.client_context())


def test_broken_file_leaves_the_old_certificate_with_one_line(
    pki: Pki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store.pem"
    store.write_text(pki.broker_store.read_text())
    settings = SecuritySettings(ssl_keystore_location=str(store))
    listener = TlsListener("SSL", settings)
    store.write_text("broken")
    with caplog.at_level(logging.INFO, "millstream.security"):
        for _ in range(3):
            listener.refresh(settings)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    handshake(listener.in_use.context, pki.client_context())
    store.unlink()
    listener.refresh(settings)
    store.write_text(pki.broker_store.read_text())
    listener.refresh(settings)
    handshake(listener.in_use.context, pki.client_context())


def test_passing_error_is_tried_again_with_one_line(
    pki: Pki, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = tmp_path / "store.pem"
    store.write_text(pki.broker_store.read_text())
    settings = SecuritySettings(ssl_keystore_location=str(store))
    listener = TlsListener("SSL", settings)
    other = make_pki(tmp_path, name="other")
    store.write_text(other.broker_store.read_text())

    def fail(_: SecuritySettings) -> ssl.SSLContext:
        raise OSError("Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(module, "server_context", fail)
        for _ in range(3):
            listener.refresh(settings)
    assert [it.levelname for it in caplog.records] == ["ERROR"]
    listener.refresh(settings)
    handshake(listener.in_use.context, other.client_context())


@pytest.mark.parametrize("content", ["", "é", "no certificate"])
def test_trust_in_settings_that_is_no_pem_is_refused(pki: Pki, content: str) -> None:
    settings = SecuritySettings(
        ssl_keystore_location=str(pki.broker_store),
        ssl_truststore_certificates=content,
        ssl_client_auth="required",
    )
    with pytest.raises(ConfigError, match=r"truststore\.certificates: there is no certificate"):
        server_context(settings)


def test_ciphers_of_tls_1_3_alone_turn_tls_1_2_off(pki: Pki) -> None:
    settings = SecuritySettings(
        ssl_keystore_location=str(pki.broker_store), ssl_cipher_suites=("TLS_AES_256_GCM_SHA384",)
    )
    older = pki.client_context()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(server_context(settings), older)
    with pytest.raises(ConfigError, match=r"ssl\.enabled\.protocols is without TLSv1\.3"):
        server_context(replace(settings, ssl_enabled_protocols=("TLSv1.2",)))


def test_trust_in_every_authority_is_warned_about(
    pki: Pki, caplog: pytest.LogCaptureFixture
) -> None:
    settings = SecuritySettings(
        ssl_keystore_location=str(pki.broker_store), ssl_client_auth="required"
    )
    TlsListener("SSL", settings)
    assert "set ssl.truststore.location" in caplog.text
    caplog.clear()
    TlsListener("SSL", replace(settings, ssl_truststore_location=str(pki.authority_file)))
    TlsListener("SSL", replace(settings, ssl_client_auth="none"))
    assert not caplog.records
