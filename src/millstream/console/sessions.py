"""Sessions of browsers: whose rights they have, and their connections to the cluster.

A session owns a few `Cluster`s, since one serves one thread at a time. `in_cluster` borrows one and
runs a blocking function with it in a thread. Without authentication, all browsers share a session.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import HTTPConnection

from millstream.client.cluster import Cluster
from millstream.client.security import Security
from millstream.console.settings import ConsoleSettings
from millstream.errors import ApiError

CLUSTERS_PER_SESSION_MAX = 4
THREADS_MAX = 16
TIMEOUT_SECONDS = 6.0  # a page that waits longer shows an error instead
IDLE_SECONDS_MAX = 60.0  # connections that nobody used for so long are closed
CLIENT_ID = "millstream-console"

Result = TypeVar("Result")


class Session:
    """One user of the cluster. See the module; everything but `_run` is for the event loop."""

    def __init__(
        self, bootstrap_servers: str, security: Security | None, user: str | None = None
    ) -> None:
        self.id = secrets.token_urlsafe(24)
        self.user = user
        self.bootstrap_servers = bootstrap_servers
        self._security = security
        self._idle: list[tuple[float, Cluster]] = []
        self._slots = anyio.CapacityLimiter(CLUSTERS_PER_SESSION_MAX)
        self._is_closed = False

    async def run(
        self, threads: anyio.CapacityLimiter, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """`function(cluster, *arguments)` in a thread."""
        async with self._slots:
            cluster = self._borrow()
            try:
                result = await anyio.to_thread.run_sync(
                    function, cluster, *arguments, limiter=threads
                )
            except ApiError:
                self._give_back(cluster)
                raise
            except BaseException:  # a response may still be on its way
                cluster.close()
                raise
            self._give_back(cluster)
            return result

    def close_idle(self, before: float) -> None:
        """Close connections that have been idle since `before`, of `time.monotonic`."""
        for since, cluster in self._idle:
            if since < before:
                cluster.close()
        self._idle = [it for it in self._idle if it[0] >= before]

    def close(self) -> None:
        self._is_closed = True
        self.close_idle(time.monotonic() + 1)

    def new_cluster(self, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Cluster:
        """One more, as the same user, for what takes longer than a page; the caller closes it."""
        return Cluster(
            self.bootstrap_servers,
            client_id=CLIENT_ID,
            security=self._security,
            timeout_seconds=timeout_seconds,
            missing_topic_seconds=0.0,
        )

    def _borrow(self) -> Cluster:
        return self._idle.pop()[1] if self._idle else self.new_cluster()

    def _give_back(self, cluster: Cluster) -> None:
        if self._is_closed:
            cluster.close()
        else:
            self._idle.append((time.monotonic(), cluster))


class Sessions:
    """All sessions of a console."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        security = Security.from_settings(settings.client_settings)
        self._shared = Session(settings.bootstrap_servers, security)
        self._threads = anyio.CapacityLimiter(THREADS_MAX)

    def find(self, connection: HTTPConnection) -> Session:
        return self._shared

    async def run(
        self, session: Session, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        return await session.run(self._threads, function, *arguments)

    def close_idle(self) -> None:
        self._shared.close_idle(time.monotonic() - IDLE_SECONDS_MAX)

    def close(self) -> None:
        self._shared.close()


def session_of(connection: HTTPConnection) -> Session:
    """The session of a request."""
    session: Session = connection.state.session
    return session


async def in_cluster(
    connection: HTTPConnection, function: Callable[..., Result], *arguments: Any
) -> Result:
    """`function(cluster, *arguments)` in a thread, as the user of the request."""
    sessions: Sessions = connection.app.state.sessions
    return await sessions.run(session_of(connection), function, *arguments)
