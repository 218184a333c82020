"""Certificates for tests: an authority, and what it signed for a broker and a client."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from millstream.security.certificates import Authority, make_authority


@dataclass(frozen=True)
class Pki:
    """PEM files. A store has the private key and its certificate."""

    authority: Authority
    authority_file: Path
    broker_store: Path
    client_store: Path
    now: datetime  # when they were signed

    @property
    def settings(self) -> dict[str, str]:
        """Of a broker with TLS."""
        return {
            "ssl.keystore.location": str(self.broker_store),
            "ssl.truststore.location": str(self.authority_file),
        }

    @property
    def librdkafka(self) -> dict[str, str]:
        """Of a client of librdkafka without a certificate."""
        return {"security.protocol": "SSL", "ssl.ca.location": str(self.authority_file)}

    @property
    def librdkafka_with_certificate(self) -> dict[str, str]:
        store = str(self.client_store)
        return {
            **self.librdkafka,
            "ssl.certificate.location": store,
            "ssl.key.location": store,
        }

    def client_context(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority_file))
        if with_certificate:
            context.load_cert_chain(self.client_store)
        return context


def make_pki(directory: Path, *, name: str = "test") -> Pki:
    now = datetime.now(UTC)
    directory.mkdir(parents=True, exist_ok=True)
    authority = make_authority(f"{name} authority", now)
    authority_file = directory / f"{name}-authority.pem"
    authority_file.write_text(authority.certificate)
    stores = []
    for who in ("broker", "client"):
        store = directory / f"{name}-{who}.pem"
        store.write_text(authority.sign(who, now, hosts=["localhost", "127.0.0.1"]).pem)
        stores.append(store)
    return Pki(authority, authority_file, stores[0], stores[1], now)
