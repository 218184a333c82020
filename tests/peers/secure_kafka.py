"""Apache Kafka with TLS and SASL: certificates made for it, users who may come in.

SSL            clients show a certificate of the same authority
SASL_SSL       PLAIN and SCRAM-SHA-256
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.peers.cache import require_command
from tests.peers.kafka import start_kafka
from tests.peers.servers import Server, free_port

USER, PASSWORD = "ann", 'se"cret'
_DAYS = "30"
_PROTOCOLS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL"
_PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@dataclass
class SecureKafka:
    server: Server  # its plain listener
    ssl_bootstrap: str
    sasl_bootstrap: str
    authority: Path
    client: Path  # certificate and key

    def stop(self) -> None:
        self.server.stop()


def start_secure_kafka(directory: Path) -> SecureKafka:
    """Start it, with the user of this module known to both mechanisms."""
    authority, broker, client = make_certificates(directory)
    ssl_port, sasl_port = free_port(), free_port()
    escaped = PASSWORD.replace('"', '\\\\"')  # once for JAAS, once for the properties file
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(broker),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.security.protocol.map": _PROTOCOLS,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f"{_PLAIN_MODULE} required "
        f'user_{USER}="{escaped}";',
        "listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    }
    listeners = [f"SSL://127.0.0.1:{ssl_port}", f"SASL_SSL://127.0.0.1:{sasl_port}"]
    server = start_kafka(directory / "kafka", settings, more_listeners=listeners)
    try:
        _add_scram_user(server)
    except BaseException:
        server.kill()
        raise
    return SecureKafka(server, f"127.0.0.1:{ssl_port}", f"127.0.0.1:{sasl_port}", authority, client)


def _add_scram_user(server: Server) -> None:
    from confluent_kafka.admin import (
        AdminClient,
        ScramCredentialInfo,
        ScramMechanism,
        UserScramCredentialUpsertion,
    )

    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
    change = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    admin.alter_user_scram_credentials([change])[USER].result(60)


def make_certificates(directory: Path) -> tuple[Path, Path, Path]:
    """PEM files: an authority's certificate, and a broker's and a client's with their keys."""
    directory.mkdir(parents=True, exist_ok=True)
    authority, authority_key = directory / "authority.pem", directory / "authority.key"
    _openssl(
        directory,
        *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", _DAYS),
        *("-subj", "/CN=authority", "-keyout", authority_key, "-out", authority),
    )
    signed = []
    for name in ("broker", "client"):
        key, request, certificate = (
            directory / f"{name}.{ending}" for ending in ("key", "csr", "crt")
        )
        _openssl(
            directory,
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", request),
        )
        _openssl(
            directory,
            *("x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key),
            *("-CAcreateserial", "-days", _DAYS, "-copy_extensions", "copy", "-out", certificate),
        )
        both = directory / f"{name}.pem"
        both.write_text(key.read_text() + certificate.read_text())
        signed.append(both)
    return authority, signed[0], signed[1]


def _openssl(directory: Path, *arguments: str | Path) -> None:
    openssl = require_command("openssl", "install it, e.g. `apt-get install openssl`")
    subprocess.run([openssl, *arguments], cwd=directory, check=True, capture_output=True)
