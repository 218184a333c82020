"""Certificates for brokers and clients of tests, good ones and bad ones, as PEM files."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_DAY = timedelta(days=1)


def _name(common_name: str, organization: str | None) -> x509.Name:
    """As it is written in a certificate: from the general to the particular."""
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization is not None:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@dataclass
class Authority:
    """Signs certificates; `certificate` is the file of its own."""

    directory: Path
    name: str = "authority"

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name(self.name, None)
        now = datetime.now(UTC)
        own = (
            x509.CertificateBuilder()
            .subject_name(self._subject)
            .issuer_name(self._subject)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(now + 30 * _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, SHA256())
        )
        self.certificate = self.directory / f"{self.name}.pem"
        self.certificate.write_bytes(own.public_bytes(Encoding.PEM))

    def sign(
        self,
        common_name: str,
        *,
        organization: str | None = None,
        host: str = "127.0.0.1",
        expired: bool = False,
    ) -> Path:
        """A file with a new key and its certificate, for an address."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        end = now - _DAY if expired else now + 30 * _DAY
        try:
            address: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host))
        except ValueError:
            address = x509.DNSName(host)
        signed = (
            x509.CertificateBuilder()
            .subject_name(_name(common_name, organization))
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 2 * _DAY)
            .not_valid_after(end)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(self._key, SHA256())
        )
        path = self.directory / f"{common_name}{'-expired' if expired else ''}.pem"
        path.write_bytes(_key_pem(key) + signed.public_bytes(Encoding.PEM))
        return path
