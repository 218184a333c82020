"""Sessions of browsers: whose rights they have, and their connections to the cluster.

How a console is entered depends on its client settings:

    OPEN      no credentials, and the listener wants none: all browsers share one session
    LOG_IN    SASL without a user: each browser logs in, with a user of the cluster
    TOKEN     credentials (a user, a certificate, tokens): all browsers act as that user, and need
              the token that the console printed when it started

A session owns a few `Cluster`s, since one serves one thread at a time. `in_cluster` borrows one and
runs a blocking function with it in a thread. So the cluster's access control decides what a user
sees and does. Passwords stay in the memory of the console until the session ends.
"""

from __future__ import annotations

import asyncio
import enum
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from millstream.client.cluster import Cluster, parse_addresses
from millstream.client.connection import Connection
from millstream.client.security import Security, security_settings
from millstream.console.settings import ConsoleSettings
from millstream.console.threads import in_thread
from millstream.errors import ApiError, ErrorCode
from millstream.models import dataclass
from millstream.security.exchange import OAUTHBEARER, PLAIN, AuthenticationFailed
from millstream.security.networks import is_loopback

CLUSTERS_PER_SESSION_MAX = 4
THREADS_MAX = 16
SESSIONS_MAX = 1_000
SESSIONS_PER_USER_MAX = 100
TIMEOUT_SECONDS = 10.0  # a page that waits longer shows an error instead
IDLE_SECONDS_MAX = 60.0  # connections that nobody used for so long are closed
SESSION_SECONDS_MAX = 12 * 3600.0  # without a request
LOG_INS_AT_ONCE = 4
FAILED_LOG_IN_SECONDS = 1.0
GUESSES_MAX = 10  # wrong passwords of a user, from one address
GUESSES_SECONDS = 30.0  # in that time
GUESSES_KEPT = 10_000
CLIENT_ID = "millstream-console"
# The strongest first; a user may have a password for one of them only.
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", PLAIN)

Result = TypeVar("Result")


class Access(enum.Enum):
    OPEN = "open"
    LOG_IN = "log-in"
    TOKEN = "token"


def access_of(settings: ConsoleSettings) -> Access:
    """See the module."""
    given = settings.client_settings
    uses_sasl = given.get("security.protocol", "").upper().startswith("SASL")
    if uses_sasl and given.get("sasl.mechanism", "").upper() != OAUTHBEARER:
        return Access.TOKEN if given.get("sasl.username") else Access.LOG_IN
    has_certificate = any(given.get(f"ssl.certificate.{it}") for it in ("location", "pem"))
    return Access.TOKEN if uses_sasl or has_certificate else Access.OPEN


class Session:
    """One user of the cluster. See the module; methods are for the event loop."""

    def __init__(
        self,
        bootstrap_servers: str,
        client_settings: Mapping[str, str],
        user: str | None = None,
    ) -> None:
        """`client_settings` are those of a Kafka client, with the user's secrets, and of a schema
        registry. Raises `ConfigError`."""
        self.id = secrets.token_urlsafe(32)
        self.user = user
        self.bootstrap_servers = bootstrap_servers
        self.client_settings = client_settings
        self._security = Security.from_settings(security_settings(client_settings))
        self._idle: list[tuple[float, Cluster]] = []
        self._slots = asyncio.Semaphore(CLUSTERS_PER_SESSION_MAX)
        self._is_closed = False

    async def run(
        self, threads: asyncio.Semaphore, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        """`function(cluster, *arguments)` in a thread."""
        async with self._slots:
            if self._is_closed:
                raise HTTPException(401, "you are logged out")
            cluster = self._borrow()
            try:
                result = await in_thread(threads, function, cluster, *arguments)
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

    @property
    def is_closed(self) -> bool:
        return self._is_closed

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


class Guesses:
    """Wrong passwords of late, by address and user: who guesses from elsewhere locks nobody out."""

    def __init__(self) -> None:
        self._times: OrderedDict[tuple[str, str], list[float]] = OrderedDict()

    def check(self, who: tuple[str, str], now: float) -> None:
        """Raises `HTTPException` after too many."""
        recent = [it for it in self._times.get(who, ()) if it > now - GUESSES_SECONDS]
        if len(recent) >= GUESSES_MAX:
            raise HTTPException(
                429,
                f"{len(recent)} log-ins of {who[1]!r} have failed within "
                f"{GUESSES_SECONDS:.0f} seconds; try again a little later",
            )

    def add(self, who: tuple[str, str], now: float) -> None:
        recent = [it for it in self._times.pop(who, ()) if it > now - GUESSES_SECONDS]
        self._times[who] = [*recent, now]
        if len(self._times) > GUESSES_KEPT:
            self._times.popitem(last=False)


@dataclass
class Entering:
    """A log-in that is under way, and how many wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0


class Sessions:
    """All sessions of a console."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.settings = settings
        self.access = access_of(settings)
        self.token = secrets.token_urlsafe(24) if self.access is Access.TOKEN else ""
        self._secret = secrets.token_bytes(32)
        self._by_id: OrderedDict[str, Session] = OrderedDict()  # the least recently used first
        self._threads = asyncio.Semaphore(THREADS_MAX)
        self._log_ins = asyncio.Semaphore(LOG_INS_AT_ONCE)
        self._used_at: dict[str, float] = {}  # by cookie: one session may have several
        self._guesses = Guesses()
        self._entering: dict[str, Entering] = {}  # log-ins of scripts, by key
        self._mechanisms: list[str] = []  # of the brokers, once they are known
        self.shared: Session | None = None
        if self.access is not Access.LOG_IN:
            given = settings.client_settings
            user = _shown_user(given) if self.access is Access.TOKEN else None
            self.shared = Session(settings.bootstrap_servers, given, user)

    def find(self, cookie: str) -> Session | None:
        """The session of a browser with this cookie."""
        if self.access is Access.OPEN:
            return self.shared
        session = self._by_id.get(cookie)
        if session is not None:
            self._used_at[cookie] = time.monotonic()
            self._by_id.move_to_end(cookie)
        return session

    def enter(self, token: str) -> str | None:
        """The cookie of a browser that has the token."""
        if self.shared is None or not self.is_token(token):
            return None
        cookie = secrets.token_urlsafe(32)
        self._keep(cookie, self.shared)
        return cookie

    def is_token(self, token: str) -> bool:
        return bool(self.token) and hmac.compare_digest(token.encode(), self.token.encode())

    async def log_in(
        self, user: str, password: str, *, address: str = "", key: str | None = None
    ) -> Session:
        """A new session of a user, who is at that address. Raises `ApiError` if the cluster refuses
        the password.

        With a `key`, `find` knows it by that instead of its id.
        """
        try:
            session = await in_thread(self._log_ins, self._log_in, user, password, address)
        except (ApiError, AuthenticationFailed):
            self._guesses.add((address, user), time.monotonic())
            # Outside of the places: who guesses waits, and nobody else.
            await asyncio.sleep(FAILED_LOG_IN_SECONDS)
            raise
        self._keep(key or session.id, session)
        return session

    async def log_in_once(self, user: str, password: str, *, address: str = "") -> Session:
        """The session of a script, which sends its password with every request."""
        secret = f"{user}\0{password}".encode()
        key = "script:" + hmac.digest(self._secret, secret, "sha256").hex()
        found = self.find(key)
        if found is not None:
            return found
        # Requests that a script sends at once share one session.
        entering = self._entering.setdefault(key, Entering())
        entering.waiting += 1
        try:
            async with entering.lock:
                return self.find(key) or await self.log_in(user, password, address=address, key=key)
        finally:
            entering.waiting -= 1
            if not entering.waiting:
                self._entering.pop(key, None)

    def _log_in(self, user: str, password: str, address: str) -> Session:
        """In a thread: with the first mechanism that the cluster accepts."""
        self._guesses.check((address, user), time.monotonic())
        settings = {**self.settings.client_settings}
        wanted = settings.get("sasl.mechanism")
        mechanisms = [wanted.upper()] if wanted else self._offered()
        refusal: Exception | None = None
        for mechanism in mechanisms:
            settings |= {
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": password,
            }
            session = Session(self.settings.bootstrap_servers, dict(settings), user)
            cluster = session.new_cluster()
            try:
                cluster.any_connection()
            except (ApiError, AuthenticationFailed) as error:
                refusal = error
                cluster.close()
            else:
                self._mechanisms = [mechanism, *(it for it in mechanisms if it != mechanism)]
                session._give_back(cluster)
                return session
        self._mechanisms = []
        raise refusal or no_passwords()

    def _offered(self) -> list[str]:
        """Those of the brokers, the one that worked last first."""
        if not self._mechanisms:
            self._mechanisms = mechanisms_for(self.settings, offered_mechanisms(self.settings))
        return list(self._mechanisms)

    def _keep(self, key: str, session: Session) -> None:
        self.log_out(key)
        self._by_id[key] = session
        self._used_at[key] = time.monotonic()
        mine = [it for it, known in self._by_id.items() if known.user == session.user]
        if len(mine) > SESSIONS_PER_USER_MAX:
            self.log_out(mine[0])  # the least recently used
        if len(self._by_id) > SESSIONS_MAX:
            self.log_out(next(iter(self._by_id)))

    def log_out(self, cookie: str) -> None:
        self._used_at.pop(cookie, None)
        session = self._by_id.pop(cookie, None)
        if session is not None:
            self._close(session)

    def _close(self, session: Session) -> None:
        if session is not self.shared:
            session.close()

    def csrf(self, session: Session) -> str:
        """What forms of the session contain, and no other site knows."""
        return hmac.digest(self._secret, session.id.encode(), "sha256").hex()

    async def run(
        self, session: Session, function: Callable[..., Result], *arguments: Any
    ) -> Result:
        return await session.run(self._threads, function, *arguments)

    def tidy(self) -> None:
        """Close connections and end sessions that nobody used for long."""
        now = time.monotonic()
        for cookie in list(self._by_id):
            if self._used_at[cookie] < now - SESSION_SECONDS_MAX:
                self.log_out(cookie)
        for session in self._all():
            session.close_idle(now - IDLE_SECONDS_MAX)

    def close(self) -> None:
        for session in self._all():
            session.close()

    def _all(self) -> list[Session]:
        known = {session.id: session for session in self._by_id.values()}
        return [*known.values(), *([self.shared] if self.shared else [])]


def offered_mechanisms(settings: ConsoleSettings) -> list[str]:
    """The SASL mechanisms of the brokers; none if their listener does not want a log-in."""
    given = security_settings(settings.client_settings)
    uses_tls = _uses_tls(given)
    given = {name: it for name, it in given.items() if not name.startswith("sasl.")}
    security = Security.from_settings({**given, "security.protocol": "SSL"} if uses_tls else {})
    cluster = Cluster(
        settings.bootstrap_servers, security=security, timeout_seconds=TIMEOUT_SECONDS
    )
    with cluster:
        return ask_mechanisms(cluster.any_connection())


def mechanisms_for(settings: ConsoleSettings, offered: Sequence[str]) -> list[str]:
    """Those with which to try a password, in this order. One that SCRAM refused is not sent in
    the clear afterwards: to brokers elsewhere without TLS, PLAIN is for those without SCRAM."""
    found = [it for it in MECHANISMS if it in offered]
    addresses = parse_addresses(settings.bootstrap_servers)
    is_hidden = _uses_tls(settings.client_settings) or all(is_loopback(it) for it, _ in addresses)
    if is_hidden or found == [PLAIN]:
        return found
    return [it for it in found if it != PLAIN]


def _uses_tls(settings: Mapping[str, str]) -> bool:
    return settings.get("security.protocol", "PLAINTEXT").upper().endswith("SSL")


def no_passwords() -> ApiError:
    """Of brokers with access tokens or Kerberos only."""
    return ApiError(
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        f"the brokers accept no passwords: they offer none of {', '.join(MECHANISMS)}; for "
        "OAUTHBEARER, start the console with a token endpoint in its settings file",
    )


def detected(settings: ConsoleSettings) -> ConsoleSettings:
    """The settings, with SASL if nothing is said about security and the brokers want a log-in.
    Raises `OSError` or `MillstreamError` if no broker answers."""
    if settings.client_settings.get("security.protocol") or not offered_mechanisms(settings):
        return settings
    given = {**settings.client_settings, "security.protocol": "SASL_PLAINTEXT"}
    return replace(settings, client_settings=given)


def ask_mechanisms(connection: Connection) -> list[str]:
    """A mechanism that does not exist is refused, with a list of those that do."""
    answer = connection.call("sasl_handshake", {"mechanism": "NONE"}, version=1)
    return [str(it) for it in answer.mechanisms]


def _shown_user(settings: Mapping[str, str]) -> str:
    uses_sasl = settings.get("security.protocol", "").upper().startswith("SASL")
    unnamed = "user of the access token" if uses_sasl else "user of the certificate"
    return settings.get("sasl.username") or unnamed


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
