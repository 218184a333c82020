"""Logging in to another broker: real ones, and one that is an impostor."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from millstream.broker.peers.connection import PeerConnection, PeerError
from millstream.broker.peers.login import log_in
from millstream.broker.server import BrokerServer
from millstream.security.login import Login, make_login
from tests.broker.serving import serving

JAAS = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_broker="secret" username="broker" password="secret";'
)
SETTINGS: dict[str, object] = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl_enabled_mechanisms": "PLAIN,SCRAM-SHA-256",
    "sasl_jaas_config": JAAS,
    "connection_failed_authentication_delay_ms": 0,
}


async def connect(server: BrokerServer) -> PeerConnection:
    loop = asyncio.get_running_loop()
    connection = PeerConnection(loop, "broker 2", "test")
    await loop.create_connection(lambda: connection, *server.addresses[0])
    return connection


def outcome(directory: Path, login: Login, **settings: object) -> int:
    """How long the session lasts."""

    async def scenario() -> int:
        async with serving(directory, **SETTINGS, **settings) as server:
            connection = await connect(server)
            try:
                return await log_in(connection, login, timeout_seconds=60)
            finally:
                connection.close("the test is over")

    return asyncio.run(scenario())


def test_broker_logs_in(tmp_path: Path) -> None:
    login = make_login("PLAIN", username="broker", password="secret")
    assert outcome(tmp_path, login) == 0


def test_session_has_an_end(tmp_path: Path) -> None:
    login = make_login("PLAIN", username="broker", password="secret")
    assert outcome(tmp_path, login, connections_max_reauth_ms=5000) == 5000


def test_iterations_do_not_hold_up_the_loop(tmp_path: Path) -> None:
    """The other side says how many there are."""
    threads: list[int] = []

    class Recorded:
        mechanism = "PLAIN"

        def begin(self) -> bytes:
            return b"\0broker\0secret"

        def respond(self, challenge: bytes) -> bytes | None:
            threads.append(threading.get_ident())
            return None

    outcome(tmp_path, Recorded())
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_wrong_password_is_an_error_that_says_so(tmp_path: Path, mechanism: str) -> None:
    login = make_login(mechanism, username="broker", password="hunter2")
    with pytest.raises(
        PeerError, match=r"(?i)cannot log in: .*invalid (credentials|username)"
    ) as refused:
        outcome(tmp_path, login)
    assert "hunter2" not in str(refused.value)


def test_mechanism_that_is_not_enabled_is_an_error_that_says_so(tmp_path: Path) -> None:
    login = make_login("SCRAM-SHA-512", username="broker", password="secret")
    with pytest.raises(PeerError, match="it has not enabled SCRAM-SHA-512"):
        outcome(tmp_path, login)


def test_impostor_is_noticed(tmp_path: Path) -> None:
    """A broker that accepts anybody does not know the password of SCRAM."""

    class Credulous:
        mechanism = "PLAIN"  # what it really does; our side believes that it is SCRAM

        def __init__(self) -> None:
            self._scram = make_login("SCRAM-SHA-256", username="broker", password="secret")

        def begin(self) -> bytes:
            return b"\0broker\0secret"

        def respond(self, challenge: bytes) -> bytes | None:
            return self._scram.respond(challenge)

    with pytest.raises(PeerError, match="first message is not SCRAM's"):
        outcome(tmp_path, Credulous())
