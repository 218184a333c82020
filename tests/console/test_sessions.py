"""Sessions: their connections to the cluster."""

from __future__ import annotations

import threading
import time

import anyio
import pytest
from starlette.exceptions import HTTPException

from millstream import Broker
from millstream.client.cluster import Cluster
from millstream.console import sessions as module
from millstream.console.sessions import (
    CLUSTERS_PER_SESSION_MAX,
    GUESSES_MAX,
    GUESSES_SECONDS,
    Access,
    Guesses,
    Session,
    Sessions,
    access_of,
    detected,
    mechanisms_for,
)
from millstream.console.settings import ConsoleSettings
from millstream.errors import ApiError, ErrorCode


def test_clusters_are_reused_but_not_after_a_failure() -> None:
    with Broker.start() as broker:
        session = Session(broker.bootstrap_servers, {})
        seen: list[Cluster] = []

        def use(cluster: Cluster, error: Exception | None = None) -> int:
            seen.append(cluster)
            if error is not None:
                raise error
            return len(cluster.broker_ids())

        async def run() -> None:
            threads = anyio.CapacityLimiter(4)
            assert await session.run(threads, use) == 1
            with pytest.raises(ApiError):
                await session.run(threads, use, ApiError(ErrorCode.INVALID_CONFIG, "no"))
            assert await session.run(threads, use) == 1
            with pytest.raises(OSError, match="lost"):
                await session.run(threads, use, OSError("lost"))
            assert await session.run(threads, use) == 1

        anyio.run(run)
        assert seen[0] is seen[1] is seen[2] is seen[3]
        assert seen[4] is not seen[0]
        assert not seen[0]._connections
        session.close_idle(time.monotonic() + 1)
        assert not seen[4]._connections
        session.close()


def test_clusters_of_a_session_are_bounded() -> None:
    session = Session("127.0.0.1:1", {})
    lock = threading.Lock()
    running = most = 0

    def use(cluster: Cluster) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.01)
        with lock:
            running -= 1

    async def run() -> None:
        threads = anyio.CapacityLimiter(100)
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(session.run, threads, use)

    anyio.run(run)
    assert 1 <= most <= CLUSTERS_PER_SESSION_MAX


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, Access.OPEN),
        ({"security.protocol": "PLAINTEXT"}, Access.OPEN),
        ({"security.protocol": "SSL", "ssl.ca.location": "ca.pem"}, Access.OPEN),
        ({"security.protocol": "SSL", "ssl.certificate.location": "me.pem"}, Access.TOKEN),
        ({"security.protocol": "SSL", "ssl.certificate.pem": "..."}, Access.TOKEN),
        ({"security.protocol": "sasl_ssl"}, Access.LOG_IN),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, Access.LOG_IN),
        ({"security.protocol": "SASL_SSL", "sasl.username": "alice"}, Access.TOKEN),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}, Access.TOKEN),
    ],
)
def test_credentials_in_the_settings_are_for_nobody_without_a_token(
    settings: dict[str, str], expected: Access
) -> None:
    assert access_of(ConsoleSettings("h:1", settings)) is expected


def test_listener_that_wants_a_log_in_is_noticed() -> None:
    with Broker.start(security="SASL_PLAINTEXT", users={"a": "secret"}) as broker:
        found = detected(ConsoleSettings(broker.bootstrap_servers))
    assert access_of(found) is Access.LOG_IN
    with Broker.start() as broker:
        found = detected(ConsoleSettings(broker.bootstrap_servers))
        assert access_of(found) is Access.OPEN
    with pytest.raises(ConnectionError):
        detected(ConsoleSettings("127.0.0.1:1"))


def test_requests_of_a_script_at_once_share_a_session() -> None:
    settings = {"security.protocol": "SASL_PLAINTEXT"}
    with Broker.start(security="SASL_PLAINTEXT", users={"a": "secret"}) as broker:
        sessions = Sessions(ConsoleSettings(broker.bootstrap_servers, settings))
        found: list[Session] = []

        async def enter() -> None:
            found.append(await sessions.log_in_once("a", "secret"))

        async def run() -> None:
            async with anyio.create_task_group() as group:
                for _ in range(4):
                    group.start_soon(enter)

        anyio.run(run)
        assert len({it.id for it in found}) == 1
        assert not sessions._entering
        sessions.close()
        assert found[0].is_closed


def test_cookies_of_a_token_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a",
        "sasl.password": "b",
    }
    sessions = Sessions(ConsoleSettings("127.0.0.1:1", settings))
    cookies = [sessions.enter(sessions.token) or "" for _ in range(2)]
    monkeypatch.setattr(module, "SESSION_SECONDS_MAX", 1e6)
    sessions.tidy()
    assert all(sessions.find(it) for it in cookies)
    sessions._used_at[cookies[0]] -= 2e6
    sessions.tidy()
    assert [sessions.find(it) is None for it in cookies] == [True, False]
    assert sessions.shared is not None
    assert not sessions.shared.is_closed


def test_sessions_of_one_user_log_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SESSIONS_PER_USER_MAX", 2)
    sessions = Sessions(ConsoleSettings("127.0.0.1:1", {"security.protocol": "SASL_PLAINTEXT"}))
    made = [Session("127.0.0.1:1", {}, user) for user in ("b", "a", "a", "a")]
    for it in made:
        sessions._keep(it.id, it)
    assert [it.is_closed for it in made] == [False, True, False, False]


def test_guesses_are_limited_by_address_and_user() -> None:
    guesses = Guesses()
    for _ in range(GUESSES_MAX):
        guesses.check(("here", "a"), 1.0)
        guesses.add(("here", "a"), 1.0)
    with pytest.raises(HTTPException, match="try again"):
        guesses.check(("here", "a"), 2.0)
    guesses.check(("there", "a"), 2.0)
    guesses.check(("here", "b"), 2.0)
    guesses.check(("here", "a"), 2.0 + GUESSES_SECONDS)


@pytest.mark.parametrize(
    ("servers", "protocol", "offered", "expected"),
    [
        ("b:1", "SASL_PLAINTEXT", ["PLAIN", "SCRAM-SHA-256"], ["SCRAM-SHA-256"]),
        ("b:1", "SASL_PLAINTEXT", ["PLAIN"], ["PLAIN"]),
        ("b:1", "SASL_SSL", ["PLAIN", "SCRAM-SHA-256"], ["SCRAM-SHA-256", "PLAIN"]),
        ("localhost:1", "SASL_PLAINTEXT", ["PLAIN", "SCRAM-SHA-512"], ["SCRAM-SHA-512", "PLAIN"]),
        ("localhost:1,b:1", "SASL_PLAINTEXT", ["PLAIN", "SCRAM-SHA-512"], ["SCRAM-SHA-512"]),
        ("b:1", "SASL_PLAINTEXT", ["GSSAPI"], []),
    ],
)
def test_passwords_that_scram_refused_are_not_sent_in_the_clear(
    servers: str, protocol: str, offered: list[str], expected: list[str]
) -> None:
    settings = ConsoleSettings(servers, {"security.protocol": protocol})
    assert mechanisms_for(settings, offered) == expected
