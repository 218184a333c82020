"""Certificates that OpenSSL accepts on both sides of a connection, for the right hosts only."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from millstream.security.certificates import Authority, Signed, make_authority

NOW = datetime.now(UTC)


def handshake(
    directory: Path, authority: Authority, broker: Signed, client: Signed | None, host: str
) -> dict[str, object] | None:
    """The client's certificate as the broker sees it, after a handshake in memory."""
    contexts = []
    for purpose, signed in ((ssl.Purpose.CLIENT_AUTH, broker), (ssl.Purpose.SERVER_AUTH, client)):
        context = ssl.create_default_context(purpose, cadata=authority.certificate)
        if signed is not None:
            file = directory / f"{purpose.name}.pem"
            file.write_text(signed.pem)
            context.load_cert_chain(file)
        contexts.append(context)
    contexts[0].verify_mode = ssl.CERT_REQUIRED
    upward, downward = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = contexts[0].wrap_bio(upward, downward, server_side=True)
    peer = contexts[1].wrap_bio(downward, upward, server_hostname=host)
    for side in (peer, server, peer, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return server.getpeercert()


def test_certificate_serves_broker_and_client(tmp_path: Path) -> None:
    authority = make_authority("authority", NOW)
    broker = authority.sign("broker", NOW, hosts=["localhost", "127.0.0.1", "::1"])
    client = authority.sign("ann", NOW)
    for host in ("localhost", "127.0.0.1", "::1"):
        seen = handshake(tmp_path, authority, broker, client, host)
        assert seen is not None
        assert seen["subject"] == ((("commonName", "ann"),),)


def test_certificate_of_another_host_or_authority_is_refused(tmp_path: Path) -> None:
    authority = make_authority("authority", NOW)
    broker = authority.sign("broker", NOW, hosts=["localhost"])
    client = authority.sign("ann", NOW)
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for 'elsewhere'"):
        handshake(tmp_path, authority, broker, client, "elsewhere")
    foreign = make_authority("authority", NOW).sign("ann", NOW)
    with pytest.raises(ssl.SSLError, match=r"(?i)verify failed"):
        handshake(tmp_path, authority, broker, foreign, "localhost")
    with pytest.raises(ssl.SSLError, match=r"(?i)did not return a certificate"):
        handshake(tmp_path, authority, broker, None, "localhost")


def test_certificate_does_not_outlive_its_authority(tmp_path: Path) -> None:
    authority = make_authority("authority", NOW, days=10)
    signed = x509.load_pem_x509_certificate(
        authority.sign("ann", NOW, days=99).certificate.encode()
    )
    assert signed.not_valid_after_utc == NOW.replace(microsecond=0) + timedelta(days=10)
    past = NOW - timedelta(days=100)
    old = make_authority("authority", past).sign("ann", past, days=1)
    broker = authority.sign("broker", NOW, hosts=["localhost"])
    with pytest.raises(ssl.SSLError, match=r"(?i)verify failed"):
        handshake(tmp_path, authority, broker, old, "localhost")


def test_authority_is_made_again_from_its_texts(tmp_path: Path) -> None:
    first, other = make_authority("authority", NOW), make_authority("authority", NOW)
    again = Authority.load(first.certificate, first.key)
    broker = first.sign("broker", NOW, hosts=["localhost"])
    assert handshake(tmp_path, first, broker, again.sign("ann", NOW), "localhost")
    with pytest.raises(ValueError, match="the key is not the certificate's"):
        Authority.load(first.certificate, other.key)
    with pytest.raises(ValueError):
        Authority.load("no certificate", first.key)


def test_key_is_not_shown(tmp_path: Path) -> None:
    authority = make_authority("authority", NOW)
    assert "PRIVATE" not in repr(authority) + repr(authority.sign("ann", NOW))
