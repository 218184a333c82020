"""kazoo's client as a session with ZooKeeper uses it: TLS, SASL, and reasons for failures.

kazoo makes a connection in a thread of its own, and repeats it for ever. `on_failure` gets what
went wrong, in that thread.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any, Protocol

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import SASL
from kazoo.retry import KazooRetry
from kazoo.security import ACL, ANYONE_ID_UNSAFE, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, Permissions

from millstream.broker.cluster.security import SASL_SETTING, Access, ZooKeeperSecurity
from millstream.errors import ConfigError
from millstream.security.digest_md5 import DigestMd5Login
from millstream.security.exchange import AuthenticationFailed

# It warns of each of its attempts to connect; the session logs when the connection is lost or back.
_kazoo_logger = logging.getLogger("millstream.broker.cluster.kazoo")
_kazoo_logger.setLevel(logging.ERROR)

# ZooKeeper's service and host in DIGEST-MD5 are fixed.
SASL_SERVICE, SASL_HOST = "zookeeper", "zk-sasl-md5"

ACLS = {
    Access.OPEN: OPEN_ACL_UNSAFE,
    Access.READABLE: [*CREATOR_ALL_ACL, ACL(Permissions.READ, ANYONE_ID_UNSAFE)],
    Access.PRIVATE: CREATOR_ALL_ACL,
}


class LoginRequired(exceptions.ZookeeperError):  # type: ignore[misc]
    """The server accepts requests of authenticated sessions only."""


# kazoo does not know its number, and an unknown one would end its thread.
exceptions.EXCEPTIONS.setdefault(-124, LoginRequired)


def access_of(acls: list[ACL]) -> Access:
    """What strangers may do with a node."""
    rights = 0
    for acl in acls:
        if acl.id == ANYONE_ID_UNSAFE:
            rights |= acl.perms
    if not rights:
        return Access.PRIVATE
    return Access.READABLE if rights == Permissions.READ else Access.OPEN


def identities_of(acls: list[ACL]) -> frozenset[str]:
    """Who has rights on a node besides everyone, as scheme:id."""
    return frozenset(
        f"{acl.id.scheme}:{acl.id.id}" for acl in acls if acl.perms and acl.id != ANYONE_ID_UNSAFE
    )


class Owner(Protocol):
    """Gets what happens, in kazoo's thread."""

    def on_negotiated(self, timeout_ms: int) -> None:
        """There is a connection, with this session time-out, and it is authenticated."""
        ...

    def on_failure(self, server: str, reason: str) -> None:
        """An attempt to connect to this `host:port` has failed."""
        ...


class Client(KazooClient):  # type: ignore[misc]
    """Logs in, and reports the session time-out that the server grants, which kazoo keeps to
    itself."""

    def __init__(
        self, servers: str, timeout_ms: int, security: ZooKeeperSecurity, owner: Owner
    ) -> None:
        seconds = timeout_ms / 1000
        self.sockets = Handler(seconds / (2 * (servers.count(",") + 1)), security.tls)
        super().__init__(
            hosts=servers,
            timeout=seconds,
            handler=self.sockets,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=1.5, max_delay=0.5),
            logger=_kazoo_logger,
        )
        self._security = security
        self._owner = owner
        self._connect = self._connection._connect
        self._connection._connect = self._connect_and_log_in

    def _connect_and_log_in(self, host: str, address: str, port: int) -> Any:
        self.sockets.is_connected = False
        try:
            read_timeout_ms, connect_timeout_ms = self._connect(host, address, port)
            if self._security.login is not None:
                self._log_in(*self._security.login, connect_timeout_ms / 1000)
        except exceptions.SessionExpiredError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever it is: kazoo's thread must go on
            reason = self._reason(error)
            self._owner.on_failure(f"{host}:{port}", reason)
            raise exceptions.ConnectionDropped(reason) from None
        self._owner.on_negotiated(round(read_timeout_ms * 3 / 2))  # kazoo reads two thirds of it
        return read_timeout_ms, connect_timeout_ms

    def _log_in(self, user: str, password: str, timeout_seconds: float) -> None:
        """Before any request: kazoo sends those when it is connected."""
        login = DigestMd5Login(user, password, service=SASL_SERVICE, host=SASL_HOST)
        connection = self._connection
        token: bytes | None = login.begin()
        number = 0
        while token is not None:
            number += 1
            try:
                connection._submit(SASL(token), timeout_seconds, number)
                header, buffer, offset = connection._read_header(timeout_seconds)
            except exceptions.ConnectionDropped:
                raise _refused(user) from None
            if header.err:
                raise _refused(user)
            challenge = SASL.deserialize(buffer, offset)[0]
            if challenge is None:
                raise AuthenticationFailed(
                    "it has no SASL: set authProvider.sasl and a JAAS file with a section Server, "
                    f"or remove {SASL_SETTING}"
                )
            token = login.respond(challenge)

    def _reason(self, error: Exception) -> str:
        cause = error.__context__ if isinstance(error, exceptions.ConnectionDropped) else error
        has_tls = self._security.tls is not None
        match cause:
            case ssl.SSLCertVerificationError():
                return (
                    f"its certificate is refused ({cause.verify_message.rstrip('.')}): check "
                    "zookeeper.ssl.truststore.location, and the names in the certificate"
                )
            case ssl.SSLError():
                why = (cause.reason or "connection closed").replace("_", " ").lower()
                return (
                    f"TLS failed ({why}): check that this is ZooKeeper's secureClientPort, and "
                    "that it trusts the certificate in zookeeper.ssl.keystore.location, if it asks "
                    "for one"
                )
            case AuthenticationFailed() | ConfigError():
                return str(cause)
            case OSError() if not self.sockets.is_connected:
                return str(cause.strerror or cause)
        if not self.sockets.is_connected:
            return str(error)
        hint = "true, or that it accepts TLS" if not has_tls else "false"
        return (
            f"no ZooKeeper answers there ({error}): check the port, and whether it needs "
            f"zookeeper.ssl.client.enable={hint}"
        )


def _refused(user: str) -> AuthenticationFailed:
    return AuthenticationFailed(
        f"login of user {user} is refused: check its password in {SASL_SETTING} and in the section "
        "Server of ZooKeeper's JAAS file"
    )


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Connects for a limited time, perhaps with TLS, and can drop the connection."""

    def __init__(
        self, connect_seconds_max: float, make_context: Callable[[], ssl.SSLContext] | None
    ) -> None:
        super().__init__()
        self._connect_seconds_max = connect_seconds_max
        self._make_context = make_context
        self._connection: socket.socket | None = None
        self.is_connected = False  # the last attempt: whether there was a connection

    def create_connection(self, *arguments: Any, **options: Any) -> Any:
        asked = options.get("timeout") or self._connect_seconds_max
        options["timeout"] = min(asked, self._connect_seconds_max)
        connection = super().create_connection(*arguments, **options)
        self._connection = connection
        if self._make_context is not None:
            try:
                context = self._make_context()
                connection = context.wrap_socket(connection, server_hostname=options["hostname"])
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        self.is_connected = True
        return connection

    def select(self, readable: Any, writable: Any, others: Any, timeout: Any = None) -> Any:
        """Also what TLS has decrypted already, of which the system knows nothing."""
        waiting = [it for it in readable if isinstance(it, ssl.SSLSocket) and it.pending()]
        found = super().select(readable, writable, others, 0 if waiting else timeout)
        return ([*waiting, *(it for it in found[0] if it not in waiting)], *found[1:])

    def drop_connection(self) -> None:
        """kazoo sees the end of the connection, and connects again."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                # Not that of TLS, which would go on reading, without decrypting it.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
