"""Sessions: their connections to the cluster."""

from __future__ import annotations

import threading
import time

import anyio
import pytest

from millstream import Broker
from millstream.client.cluster import Cluster
from millstream.console.sessions import (
    CLUSTERS_PER_SESSION_MAX,
    Access,
    Session,
    access_of,
    detected,
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
    assert access_of(detected(ConsoleSettings("127.0.0.1:1"))) is Access.OPEN
