"""The same secured broker, Millstream's or Apache Kafka's: listeners, users, certificates, rights.

    PLAINTEXT        anybody, as User:ANONYMOUS, without rights
    SASL_PLAINTEXT   PLAIN and SCRAM; brokers use it among themselves
    SASL_SSL         PLAIN, SCRAM and OAUTHBEARER over TLS
    SSL              clients show a certificate

The super user is `admin`; what others may do is told to the running broker through CreateAcls.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from kio.serial.errors import OutOfBoundValue

from millstream.protocol.messages import decode_response
from millstream.security.certificates import make_authority
from tests.peers.kafka import start_kafka
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, free_port, start_millstream, wait_until_listening
from tests.peers.wire import ConnectionEnded, Wire, entity_class, response_entity

ADMIN = "admin"
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SASL_SSL", "SSL")
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
OAUTH_VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
SCRAM = {"SCRAM-SHA-256": (1, "sha256"), "SCRAM-SHA-512": (2, "sha512")}
_strangers = itertools.count()
_MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"


def password_of(user: str) -> str:
    """With characters that JAAS, URLs and shells care about."""
    return f"{user}'s-p%ss=w,rd"


class Certificates:
    """PEM files of an authority and of what it signed."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._made = make_authority(name, datetime.now(UTC))
        self.authority = directory / f"{name}.pem"
        self.authority.write_text(self._made.certificate)

    def sign(self, name: str, *, host: str = "127.0.0.1", expired: bool = False) -> Path:
        """A key and its certificate, in one file."""
        signed_at = datetime.now(UTC) - timedelta(days=2 if expired else 0)
        store = self._directory / f"{name}.pem"
        store.write_text(self._made.sign(name, signed_at, hosts=[host], days=1).pem)
        return store

    def client_context(self, store: Path | None = None) -> ssl.SSLContext:
        """Of a client who trusts this authority and shows, perhaps, a certificate."""
        context = ssl.create_default_context(cafile=str(self.authority))
        if store is not None:
            context.load_cert_chain(store)
        return context


class TokenIssuer:
    """Signs tokens for OAUTHBEARER; its public key is in a file."""

    ISSUER, AUDIENCE, KEY_ID = "https://issuer.example", "brokers", "key-1"

    def __init__(self, directory: Path) -> None:
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        public = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        self.keys = directory / "jwks.json"
        self.keys.write_text(json.dumps({"keys": [public | {"kid": self.KEY_ID, "use": "sig"}]}))

    def token(self, user: str, *, seconds: float = 3600, **claims: Any) -> str:
        """For a user, who may use it so long; a claim of None is left out."""
        now = time.time()
        said = {
            "sub": user,
            "iss": self.ISSUER,
            "aud": self.AUDIENCE,
            "iat": int(now),
            "exp": int(now + seconds),
        }
        said = {name: value for name, value in (said | claims).items() if value is not None}
        return jwt.encode(said, self._key, "RS256", headers={"kid": self.KEY_ID})


class SaslRefused(Exception):
    """The broker answered SaslHandshake or SaslAuthenticate with an error."""

    def __init__(self, code: int, message: str | None) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message


class SecuredWire(Wire):
    """A `Wire` that can come in through any door."""

    def start_tls(self, context: ssl.SSLContext, host: str = "127.0.0.1") -> None:
        self.socket = context.wrap_socket(self.socket, server_hostname=host)

    def receive(self, api: str, version: int) -> Any:
        """As `Wire`, and times before 1970, which kio refuses to read: -1 stands for none."""
        content = self.receive_frame()
        try:
            return response_entity(api, version, content)
        except OutOfBoundValue:
            flexible = bool(entity_class(api, version, "response").__flexible__)
            return decode_response(api, version, content[4 + flexible :])

    def sign_in(self, user: str, password: str | None = None) -> int:
        """With PLAIN. Returns the lifetime of the session in milliseconds, 0 without an end."""
        self.handshake("PLAIN")
        given = password_of(user) if password is None else password
        answer = self.authenticate(f"\0{user}\0{given}".encode())
        return int(answer.session_lifetime / timedelta(milliseconds=1))

    def handshake(self, mechanism: str) -> Any:
        answer = self.call("sasl_handshake", 1, mechanism=mechanism)
        if answer.error_code:
            raise SaslRefused(int(answer.error_code), ",".join(answer.mechanisms))
        return answer

    def authenticate(self, token: bytes) -> Any:
        answer = self.call("sasl_authenticate", 2, auth_bytes=token)
        if answer.error_code:
            raise SaslRefused(int(answer.error_code), answer.error_message)
        return answer


@dataclass
class Secured:
    """A running broker with its doors."""

    server: Server
    ports: Mapping[str, int]
    certificates: Certificates
    issuer: TokenIssuer

    @property
    def kind(self) -> str:
        return self.server.kind

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def wire(self, user: str | None, client_id: str = "wire") -> SecuredWire:
        """A connection of this user, signed in with PLAIN; of nobody for None."""
        listener = "PLAINTEXT" if user is None else "SASL_PLAINTEXT"
        wire = SecuredWire(self.address(listener), client_id=client_id)
        try:
            if user is not None:
                wire.sign_in(user)
        except BaseException:
            wire.socket.close()
            raise
        return wire

    def stranger(self, listener: str = "SASL_PLAINTEXT", **options: Any) -> SecuredWire:
        """A connection before anything was said, from an address that nobody else has: those who
        fail to authenticate make others at their address wait."""
        number = next(_strangers)
        source = f"127.{1 + number // 62_500 % 250}.{number // 250 % 250}.{1 + number % 250}"
        return SecuredWire(self.address(listener), source=source, **options)

    def add_scram_user(self, user: str, *mechanisms: str) -> None:
        """With the password of `password_of`, for these mechanisms, or for both."""
        upsertions = []
        for mechanism in mechanisms or tuple(SCRAM):
            number, digest = SCRAM[mechanism]
            salt = os.urandom(16)
            salted = hashlib.pbkdf2_hmac(digest, password_of(user).encode(), salt, 4096)
            upsertions.append(
                {
                    "name": user,
                    "mechanism": number,
                    "iterations": 4096,
                    "salt": salt,
                    "salted_password": salted,
                }
            )
        with self.wire(ADMIN) as admin:
            for upsertion in upsertions:  # Kafka takes each user once in a request
                answer = admin.call(
                    *("alter_user_scram_credentials", 0), deletions=(), upsertions=[upsertion]
                )
                assert answer.results[0].error_code == 0, answer

    def stop(self) -> int:
        return self.server.stop()


def start_secured(
    kind: str,
    directory: Path,
    users: Iterable[str] = (),
    settings: Mapping[str, str] | None = None,
    *,
    jvm_options: Sequence[str] = (),
) -> Secured:
    """Start it with users of PLAIN, whose passwords `password_of` tells."""
    directory.mkdir(parents=True, exist_ok=True)
    certificates = Certificates(directory / "certificates")
    issuer = TokenIssuer(directory)
    ports = {name: free_port() for name in LISTENERS}
    common = secured_settings(certificates, issuer, [ADMIN, *users]) | dict(settings or {})
    listeners = [f"{name}://127.0.0.1:{port}" for name, port in ports.items()]
    if kind == "apache-kafka":
        controller = free_port()
        server = start_kafka(
            directory,
            common
            | _apache_settings(common, controller)
            | {"listeners": ",".join([*listeners, f"CONTROLLER://127.0.0.1:{controller}"])},
            port=ports["PLAINTEXT"],
            jvm_options=[
                *jvm_options,
                f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={issuer.keys.as_uri()}",
            ],
        )
    else:
        server = start_millstream(
            directory / "data",
            common | {"listeners": ",".join(listeners)},
            port=ports["PLAINTEXT"],
        )
    log = directory / ("server.log" if kind == "apache-kafka" else "data.log")
    for port in ports.values():  # they open one after another
        door = replace(server, port=port)
        wait_until_listening(door, log, PATIENCE_SECONDS)
    return Secured(server, ports, certificates, issuer)


def secured_settings(
    certificates: Certificates, issuer: TokenIssuer, users: Sequence[str]
) -> dict[str, str]:
    """What both brokers understand."""
    plain = plain_jaas(users)
    settings = {
        "authorizer.class.name": AUTHORIZER,
        "super.users": f"User:{ADMIN}",
        "connection.failed.authentication.delay.ms": "1",
        "listener.security.protocol.map": ",".join(
            [f"{name}:{name}" for name in LISTENERS] + ["CONTROLLER:SASL_PLAINTEXT"]
        ),
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.enabled.mechanisms": _MECHANISMS,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificates.sign("broker")),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificates.authority),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": f"{_MECHANISMS},OAUTHBEARER",
        "listener.name.sasl_ssl.oauthbearer.sasl.jaas.config": f"{OAUTH_MODULE} required;",
        "listener.name.sasl_ssl.oauthbearer.sasl.server.callback.handler.class": OAUTH_VALIDATOR,
        "sasl.oauthbearer.jwks.endpoint.url": issuer.keys.as_uri(),
        "sasl.oauthbearer.expected.audience": issuer.AUDIENCE,
        "sasl.oauthbearer.expected.issuer": issuer.ISSUER,
    }
    for listener in ("sasl_plaintext", "sasl_ssl"):
        prefix = f"listener.name.{listener}"
        settings[f"{prefix}.plain.sasl.jaas.config"] = plain
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[f"{prefix}.{mechanism}.sasl.jaas.config"] = f"{SCRAM_MODULE} required;"
    return settings


def plain_jaas(users: Sequence[str]) -> str:
    """Of a broker: itself as the admin, and who may come in."""
    entries = [f'username="{ADMIN}" password="{password_of(ADMIN)}"']
    entries += [f'user_{user}="{password_of(user)}"' for user in users]
    return f"{PLAIN_MODULE} required {' '.join(entries)};"


def _apache_settings(common: Mapping[str, str], controller_port: int) -> dict[str, str]:
    jaas = common["listener.name.sasl_plaintext.plain.sasl.jaas.config"]
    return {
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "sasl.mechanism.controller.protocol": "PLAIN",
        "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
        "listener.name.controller.plain.sasl.jaas.config": jaas,
    }


__all__ = [
    "ADMIN",
    "ConnectionEnded",
    "SaslRefused",
    "Secured",
    "SecuredWire",
    "start_secured",
]
