"""Who somebody is: real clients with every mechanism, users who come and go, and no secret in logs.

The broker has one listener, with SASL, and is set up as a newcomer would: its first user is the
`admin` of its settings.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AiokafkaTokenProvider
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, ConfigResource
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from millstream.security.login import make_login
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.secured import (
    OAUTH_VALIDATOR,
    PLAIN_MODULE,
    SCRAM_MODULE,
    ConnectionEnded,
    SaslRefused,
    SecuredWire,
    TokenIssuer,
)
from tests.peers.servers import Server, free_port, wait_until_listening

ADMIN_PASSWORD = "adm,in=secret-5a31"
PLAIN_PASSWORD = "plain;secret-77c2"
NEW_PASSWORD = "new-user-secret-41b9"
WRONG_PASSWORD = "wrong-guess-9d07"
SECRETS = (ADMIN_PASSWORD, PLAIN_PASSWORD, NEW_PASSWORD, WRONG_PASSWORD)
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PREFIX = "listener.name.sasl_plaintext"
MILLSTREAM = Path(sys.executable).with_name("millstream")


class Secured:
    """A `millstream serve` with one SASL listener."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.issuer = TokenIssuer(directory)
        self.port = free_port()
        self.log = directory / "serve.log"
        self._properties = directory / "server.properties"
        self._properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings().items()))
        self.client_config = directory / "admin.properties"
        self.client_config.write_text(
            "".join(f"{k}={v}\n" for k, v in self.settings("SCRAM-SHA-512", "admin").items())
        )
        self.server = self.start()

    def _settings(self) -> dict[str, str]:
        admin = f'{SCRAM_MODULE} required username="admin" password="{ADMIN_PASSWORD}";'
        return {
            "listeners": f"SASL_PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.directory / "data"),
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.jaas.config": admin,
            f"{PREFIX}.plain.sasl.jaas.config": f"{PLAIN_MODULE} required "
            f'user_plain="{PLAIN_PASSWORD}";',
            f"{PREFIX}.oauthbearer.sasl.server.callback.handler.class": OAUTH_VALIDATOR,
            "sasl.oauthbearer.jwks.endpoint.url": self.issuer.keys.as_uri(),
            "sasl.oauthbearer.expected.audience": TokenIssuer.AUDIENCE,
            "sasl.oauthbearer.expected.issuer": TokenIssuer.ISSUER,
            "connection.failed.authentication.delay.ms": "10",
            # Only in sessions that end may clients authenticate again.
            f"{PREFIX}.scram-sha-256.connections.max.reauth.ms": "3600000",
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> Server:
        with self.log.open("ab") as log:
            command = [str(MILLSTREAM), "serve", "--config", str(self._properties)]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        server = Server("millstream", "127.0.0.1", self.port, process, self.directory / "data")
        wait_until_listening(server, self.log, PATIENCE_SECONDS)
        return server

    def settings(self, mechanism: str, user: str, password: str = ADMIN_PASSWORD) -> dict[str, Any]:
        """Of confluent-kafka."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
        }

    def admin(self) -> AdminClient:
        return AdminClient(self.settings("SCRAM-SHA-256", "admin") | {"log_level": 0})

    def run(self, *arguments: str, stdin: str = "") -> str:
        """A command of the admin."""
        command = [str(MILLSTREAM), *arguments, "--client-config", str(self.client_config)]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def log_in(self, mechanism: str, user: str, password: str) -> None:
        """Raises `SaslRefused`."""
        with SecuredWire(self.address) as wire:
            login = make_login(mechanism, username=user, password=password)
            wire.handshake(mechanism)
            token: bytes | None = login.begin()
            while token is not None:
                token = login.respond(wire.authenticate(token).auth_bytes)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    yield made
    made.server.stop()


def user_of(mechanism: str) -> tuple[str, str]:
    return ("plain", PLAIN_PASSWORD) if mechanism == "PLAIN" else ("admin", ADMIN_PASSWORD)


def produce_with_confluent_kafka(secured: Secured, mechanism: str, topic: str) -> int:
    user, password = user_of(mechanism)
    settings = secured.settings(mechanism, user, password)
    if mechanism == "OAUTHBEARER":
        del settings["sasl.username"], settings["sasl.password"]
        settings["oauth_cb"] = lambda _: (secured.issuer.token("tokens"), time.time() + 3600)
    offsets: list[int] = []
    producer = Producer(settings)
    producer.produce(topic, b"x", on_delivery=lambda _, message: offsets.append(message.offset()))
    assert producer.flush(PATIENCE_SECONDS) == 0
    return offsets[0]


def produce_with_kafka_python(secured: Secured, mechanism: str, topic: str) -> int:
    class Tokens(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return secured.issuer.token("tokens")

    user, password = user_of(mechanism)
    producer = KafkaProducer(
        bootstrap_servers=secured.address,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism=mechanism,
        sasl_plain_username=user,
        sasl_plain_password=password,
        sasl_oauth_token_provider=Tokens(),
    )
    try:
        return int(producer.send(topic, b"x").get(PATIENCE_SECONDS).offset)
    finally:
        producer.close()


def produce_with_aiokafka(secured: Secured, mechanism: str, topic: str) -> int:
    class Tokens(AiokafkaTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return secured.issuer.token("tokens")

    async def produce() -> int:
        user, password = user_of(mechanism)
        producer = AIOKafkaProducer(
            bootstrap_servers=secured.address,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username=user,
            sasl_plain_password=password,
            sasl_oauth_token_provider=Tokens(),
        )
        await producer.start()
        try:
            return int((await producer.send_and_wait(topic, b"x")).offset)
        finally:
            await producer.stop()

    return asyncio.run(produce())


CLIENTS: dict[str, Callable[[Secured, str, str], int]] = {
    "confluent-kafka": produce_with_confluent_kafka,
    "kafka-python": produce_with_kafka_python,
    "aiokafka": produce_with_aiokafka,
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_client_produces(secured: Secured, client: str, mechanism: str) -> None:
    assert CLIENTS[client](secured, mechanism, f"{client}-{mechanism}") == 0


def test_user_comes_and_goes(secured: Secured) -> None:
    secured.run("user", "create", "ann", "--password-file", "-", stdin=NEW_PASSWORD)
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        secured.log_in(mechanism, "ann", NEW_PASSWORD)
    new = json.loads(secured.run("user", "create", "ann", "--generate", "--replace", "--json"))
    secured.log_in("SCRAM-SHA-256", "ann", new["password"])
    with pytest.raises(SaslRefused):
        secured.log_in("SCRAM-SHA-512", "ann", NEW_PASSWORD)
    secured.run("user", "delete", "ann")
    with pytest.raises(SaslRefused):
        secured.log_in("SCRAM-SHA-256", "ann", new["password"])
    assert [it["user"] for it in json.loads(secured.run("user", "list", "--json"))] == ["admin"]


@pytest.mark.slow
def test_deleted_user_is_cut_at_the_next_authentication(secured: Secured) -> None:
    secured.run("user", "create", "bob", "--password-file", "-", stdin=NEW_PASSWORD)
    with SecuredWire(secured.address) as wire:
        for attempt in range(2):
            login = make_login("SCRAM-SHA-256", username="bob", password=NEW_PASSWORD)
            wire.handshake("SCRAM-SHA-256")
            final = login.respond(wire.authenticate(login.begin()).auth_bytes)
            assert final is not None
            if attempt == 0:
                wire.authenticate(final)
                assert wire.call("metadata", 12, topics=[]).cluster_id
                secured.run("user", "delete", "bob")
                time.sleep(1.2)  # longer than the least time between two authentications
            else:
                with pytest.raises(SaslRefused):
                    wire.authenticate(final)


def sign_in_with_token(wire: SecuredWire, token: str) -> float:
    """Returns for how many seconds the session lasts."""
    wire.handshake("OAUTHBEARER")
    answer = wire.authenticate(make_login("OAUTHBEARER", token=token).begin())
    assert answer.auth_bytes == b""
    return float(answer.session_lifetime.total_seconds())


def test_session_ends_with_its_token_unless_there_is_a_new_one(secured: Secured) -> None:
    with SecuredWire(secured.address) as renewed, SecuredWire(secured.address) as forgotten:
        for wire in (renewed, forgotten):
            assert 0 < sign_in_with_token(wire, secured.issuer.token("t", seconds=3)) <= 3
        time.sleep(1.2)  # longer than the least time between two authentications
        assert sign_in_with_token(renewed, secured.issuer.token("t", seconds=3600)) > 3500
        time.sleep(2.5)  # the first tokens have expired
        assert renewed.call("metadata", 12, topics=[]).cluster_id
        with pytest.raises(ConnectionEnded):
            forgotten.call("metadata", 12, topics=[])


def test_token_of_another_user_does_not_renew_a_session(secured: Secured) -> None:
    with SecuredWire(secured.address) as wire:
        sign_in_with_token(wire, secured.issuer.token("t"))
        time.sleep(1.2)  # longer than the least time between two authentications
        with pytest.raises(SaslRefused, match="Cannot change principals"):
            sign_in_with_token(wire, secured.issuer.token("another"))


def test_acknowledged_changes_outlive_kill_9(secured: Secured) -> None:
    secured.run("user", "create", "kept", "--password-file", "-", stdin=NEW_PASSWORD)
    secured.run("user", "create", "gone", "--password-file", "-", stdin=NEW_PASSWORD)
    secured.run("user", "delete", "gone")
    secured.server.kill()
    secured.server = secured.start()
    secured.log_in("SCRAM-SHA-512", "kept", NEW_PASSWORD)
    with pytest.raises(SaslRefused):
        secured.log_in("SCRAM-SHA-512", "gone", NEW_PASSWORD)
    secured.log_in("SCRAM-SHA-256", "admin", ADMIN_PASSWORD)


def test_users_of_plain_change_at_run_time(secured: Secured) -> None:
    name = f"{PREFIX}.plain.sasl.jaas.config"
    right = f'{PLAIN_MODULE} required user_plain="{PLAIN_PASSWORD}" user_late="{NEW_PASSWORD}";'
    wrong = f'{PLAIN_MODULE} required user_plain="{PLAIN_PASSWORD}'
    broker = ConfigResource(ConfigResource.Type.BROKER, "1", set_config={name: right})
    admin = secured.admin()
    admin.alter_configs([broker])[broker].result(PATIENCE_SECONDS)
    secured.log_in("PLAIN", "late", NEW_PASSWORD)
    refused = ConfigResource(ConfigResource.Type.BROKER, "1", set_config={name: wrong})
    with pytest.raises(KafkaException, match="not as Java writes it") as failed:
        admin.alter_configs([refused])[refused].result(PATIENCE_SECONDS)
    assert PLAIN_PASSWORD not in str(failed.value)
    secured.log_in("PLAIN", "plain", PLAIN_PASSWORD)


def test_no_secret_in_settings_logs_or_errors(secured: Secured) -> None:
    token = secured.issuer.token("tokens", aud="others")
    for mechanism, user in (("PLAIN", "plain"), ("SCRAM-SHA-256", "admin"), ("PLAIN", "x")):
        with pytest.raises(SaslRefused) as refused:
            secured.log_in(mechanism, user, WRONG_PASSWORD)
        assert not any(secret in str(refused.value) for secret in SECRETS)
    with SecuredWire(secured.address) as wire:
        wire.handshake("OAUTHBEARER")
        login = make_login("OAUTHBEARER", token=token)
        assert b"invalid_token" in wire.authenticate(login.begin()).auth_bytes
        with pytest.raises(SaslRefused):
            wire.authenticate(b"\x01")
    broker = ConfigResource(ConfigResource.Type.BROKER, "1")
    admin = secured.admin()
    described = admin.describe_configs([broker])[broker].result(PATIENCE_SECONDS)
    passwords = {name: it for name, it in described.items() if name.endswith("sasl.jaas.config")}
    assert {"sasl.jaas.config", f"{PREFIX}.plain.sasl.jaas.config"} <= set(passwords)
    assert all(it.is_sensitive and it.value is None for it in passwords.values())
    secured.server.stop()
    secured.server = secured.start()
    logged = secured.log.read_text()
    assert "wrong password" in logged, "failures are logged, with the reason"
    leaked = [secret for secret in (*SECRETS, token, token.split(".")[2]) if secret in logged]
    assert not leaked
