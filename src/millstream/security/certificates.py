"""Certificates for trials and tests: an authority, and what it signs for brokers and clients.

    authority = make_authority("my laptop", now)
    broker = authority.sign("broker", now, hosts=["localhost", "127.0.0.1"])

ECDSA with P-256, so a handshake costs the broker half of what RSA does. All texts are PEM, keys
PKCS #8 without a password: what OpenSSL, Java's PEM stores and librdkafka read. Keys are random,
the time is passed in. Needs `cryptography` (the extra `security`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
DAYS = 825  # the most that Apple's systems accept of a certificate
_BEFORE = timedelta(hours=1)  # clocks of other machines may be behind


@dataclass(frozen=True)
class Signed:
    """A certificate and its private key. Its repr does not contain the key."""

    certificate: str
    key: str = field(repr=False)

    @property
    def pem(self) -> str:
        """Both in one file, as Java's stores of type PEM have them."""
        return self.key + self.certificate


@dataclass(frozen=True)
class Authority(Signed):
    """Signs certificates. A text of the two parts is enough to make it again."""

    @classmethod
    def load(cls, certificate: str, key: str) -> Authority:
        """Raises `ValueError` for texts that are not a certificate and its key."""
        signer = serialization.load_pem_private_key(key.encode(), None)
        found = x509.load_pem_x509_certificate(certificate.encode())
        if found.public_key() != signer.public_key():
            raise ValueError("the key is not the certificate's")
        return cls(certificate, key)

    def sign(
        self, name: str, now: datetime, *, hosts: Iterable[str] = (), days: int = DAYS
    ) -> Signed:
        """A certificate for `CN=name`, valid at these host names and addresses.

        It serves both sides of a connection: brokers are also each other's clients. With negative
        days, it has expired.
        """
        issuer = x509.load_pem_x509_certificate(self.certificate.encode())
        signer = serialization.load_pem_private_key(self.key.encode(), None)
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        end = min(now + timedelta(days=days), issuer.not_valid_after_utc)
        builder = (
            _builder(x509.Name(_common_name(name)), issuer.subject, key, now, end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
                critical=False,
            )
        )
        names = [_alternative_name(host) for host in dict.fromkeys(hosts)]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(signer, hashes.SHA256())
        return Signed(_certificate_pem(signed), _key_pem(key))


def make_authority(name: str, now: datetime, *, days: int = AUTHORITY_DAYS) -> Authority:
    """A new authority, which signs itself and nothing that could sign others."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name(_common_name(name))
    signed = (
        _builder(subject, subject, key, now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(_certificate_pem(signed), _key_pem(key))


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, end) - _BEFORE)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _common_name(name: str) -> list[x509.NameAttribute[str]]:
    return [x509.NameAttribute(NameOID.COMMON_NAME, name)]


def _key_usage(
    *, digital_signature: bool = False, signs_certificates: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _certificate_pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
