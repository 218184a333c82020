"""A session with ZooKeeper, for asyncio. Only this module and `connection` import kazoo.

kazoo works in threads of its own. This adapter brings its results to the event loop, and adds what
a broker needs and kazoo does not have:

- A gate. kazoo queues requests while it is disconnected and sends them later, perhaps in another
  session, and from the 278th on it blocks its caller. Here a request without a connection fails at
  once (`NotConnected`), and at most `REQUESTS_MAX` are unanswered.
- Outcomes. A request whose connection is lost before the answer raises `OutcomeUnknown`: it may
  have been carried out.
- Proof of contact. A `sync` is sent eight times per session time-out. It is answered by the leader
  of the ensemble, so a server that is cut off from the others cannot answer it. The session cannot
  have ended within the time-out since the last answered one was sent; `is_proved` is True for
  `PROVED_SHARE` of that time. The rest covers the interval between two of them, and half a tick
  until a follower reports them to its leader.
- A short way out. A connection without an answer for a third of the time-out is dropped, which
  kazoo itself does only if it has nothing to send. Connecting to one server takes a limited time,
  and attempts are repeated at most every half second.

Watches are one-shot. All of them fire when the connection is lost. Read again, with the watch, when
a listener is called with CONNECTED or NEW_SESSION.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from kazoo import exceptions
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState

from millstream.broker.cluster.connection import (
    ACLS,
    Client,
    LoginRequired,
    access_of,
    identities_of,
)
from millstream.broker.cluster.security import Access, ZooKeeperSecurity
from millstream.errors import MillstreamError

logger = logging.getLogger(__name__)

REQUESTS_MAX = 100
PROOFS_PER_TIMEOUT = 8
PROVED_SHARE = 0.7
DROP_SHARE = 1 / 3
CLOSE_SECONDS_MAX = 1.0
ANY_VERSION = -1


class ZooKeeperError(MillstreamError):
    """A request to ZooKeeper failed; `path` is its node, if it has one."""

    path: str = ""


class NotConnected(ZooKeeperError):
    """There is no connection: nothing was sent."""


class OutcomeUnknown(ZooKeeperError):
    """The connection was lost before the answer: the request may have been carried out."""


class NoNode(ZooKeeperError):
    """The node, or its parent, does not exist."""


class NodeExists(ZooKeeperError):
    """The node exists already."""


class BadVersion(ZooKeeperError):
    """The node does not have the expected version."""


class NotEmpty(ZooKeeperError):
    """The node has children and cannot be deleted."""


class NoAccess(ZooKeeperError):
    """The node's ACL does not allow it."""


_ERRORS: dict[type[Exception], type[ZooKeeperError]] = {
    exceptions.NoNodeError: NoNode,
    exceptions.NodeExistsError: NodeExists,
    exceptions.BadVersionError: BadVersion,
    exceptions.NotEmptyError: NotEmpty,
    exceptions.NoAuthError: NoAccess,
    exceptions.ConnectionLoss: OutcomeUnknown,
    exceptions.ConnectionClosedError: OutcomeUnknown,
    exceptions.OperationTimeoutError: OutcomeUnknown,
    exceptions.SessionExpiredError: OutcomeUnknown,
}
_REMEDIES: dict[type[Exception], str] = {
    exceptions.NoAuthError: "the node belongs to another identity: check the user in "
    "millstream.zookeeper.sasl.jaas.config and the certificate in zookeeper.ssl.keystore.location, "
    "which are those of the brokers that created the cluster",
    exceptions.InvalidACLError: "zookeeper.set.acl is true, but ZooKeeper does not know who this "
    "broker is: set authProvider.sasl, or authProvider.x509 for certificates, on its servers",
    LoginRequired: "ZooKeeper requires a login: set millstream.zookeeper.sasl.jaas.config",
}
# Of a refused transaction: the operations that were not the reason.
_BYSTANDERS = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)


class SessionEvent(enum.Enum):
    CONNECTED = "connected"  # again, in the same session
    NEW_SESSION = "new session"  # connected; the ephemeral nodes of the former session are gone
    DISCONNECTED = "disconnected"


Listener: TypeAlias = Callable[[SessionEvent], None]
Watcher: TypeAlias = Callable[[], None]
T = TypeVar("T")


class Node(NamedTuple):
    """A node's content."""

    data: bytes
    version: int
    created_zxid: int
    ephemeral_owner: int  # a session's id; 0: not ephemeral


class Check(NamedTuple):
    path: str
    version: int


class SetData(NamedTuple):
    path: str
    data: bytes
    version: int = ANY_VERSION


class Create(NamedTuple):
    path: str
    data: bytes = b""
    ephemeral: bool = False


class Delete(NamedTuple):
    path: str
    version: int = ANY_VERSION


Operation: TypeAlias = Check | SetData | Create | Delete


class ZooKeeperSession:
    """See the module. Belongs to the event loop's thread."""

    def __init__(
        self, hosts: str, *, session_timeout_ms: int, security: ZooKeeperSecurity | None = None
    ) -> None:
        """`hosts`: `host:port,host:port/chroot`."""
        servers, _, chroot = hosts.partition("/")
        self.hosts = hosts
        self._root = "/" + chroot.strip("/") if chroot.strip("/") else ""
        self._loop = asyncio.get_running_loop()
        self._asked_timeout_ms = session_timeout_ms
        self._timeout_ms = session_timeout_ms  # as negotiated
        self.security = security or ZooKeeperSecurity()
        self._client = Client(servers, session_timeout_ms, self.security, self)
        self._client.add_listener(self._on_kazoo_state)
        self._slots = asyncio.Semaphore(REQUESTS_MAX)
        self._unanswered: set[asyncio.Future[Any]] = set()
        self._watchers: dict[Watcher, Callable[[object], None]] = {}
        self._is_closed = False
        self._id = 0
        self._proved_at: float | None = None  # when the last answered `sync` was sent
        self._connected = asyncio.Event()
        self._heartbeat: asyncio.Task[None] | None = None
        self._failures: dict[str, str] = {}  # of the last attempts to connect, by server
        self.listeners: list[Listener] = []

    # State

    @property
    def id(self) -> int:
        """The id of the current, or the last, session."""
        return self._id

    @property
    def timeout_ms(self) -> int:
        """The session time-out that the server granted."""
        return self._timeout_ms

    @property
    def has_chroot(self) -> bool:
        return bool(self._root)

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set() and bool(self._client.connected)

    @property
    def is_proved(self) -> bool:
        """Whether the session cannot have ended, as far as this process can prove."""
        proved_at = self._proved_at
        return proved_at is not None and elapsed_seconds() - proved_at < self._proved_seconds

    @property
    def _proved_seconds(self) -> float:
        return self._timeout_ms * PROVED_SHARE / 1000

    # Life

    async def start(self, timeout_seconds: float) -> None:
        """Connect. Raises `ZooKeeperError` if no server answers in time."""
        self._client.start_async()
        try:
            await asyncio.wait_for(self._connected.wait(), timeout_seconds)
        except TimeoutError:
            await self.close()
            reasons = [f"{server}: {reason}" for server, reason in self._failures.items()]
            reason = f" ({'; '.join(reasons)})" if reasons else ""
            raise ZooKeeperError(
                f"no ZooKeeper server answers at {self.hosts} within {timeout_seconds:g} s"
                f"{reason}: check that it runs, and the addresses (host:port,host:port/chroot)"
            ) from None
        self._heartbeat = self._loop.create_task(self._send_heartbeats())

    async def wait_until_connected(self) -> None:
        while not self.is_connected:
            await self._connected.wait()
            await asyncio.sleep(0.001)  # kazoo may have lost it, and not told the loop yet

    async def repeating(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of `work`, which is repeated if the connection is lost: it must be safe to do
        it twice."""
        while True:
            try:
                return await work()
            except (NotConnected, OutcomeUnknown):
                if self._is_closed:
                    raise
                await self.wait_until_connected()

    async def close(self) -> None:
        """End the session, and with it its ephemeral nodes."""
        if self._is_closed:
            return
        self._is_closed = True
        self._proved_at = None
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        stopping = asyncio.ensure_future(asyncio.to_thread(self._stop_client))
        await asyncio.wait({stopping}, timeout=CLOSE_SECONDS_MAX)
        if not stopping.done():
            # A silent server: the session ends by its time-out.
            self._client.sockets.drop_connection()
        await stopping
        self._connected.clear()
        self._fail_unanswered()

    def _stop_client(self) -> None:
        self._client.stop()
        self._client.close()

    # Requests

    async def get(self, path: str, watch: Watcher | None = None) -> Node:
        node, watcher = self._node(path), self._one_shot(watch)
        data, stat = await self._call(lambda it: it.get_async(node, watch=watcher), path)
        return Node(data or b"", stat.version, stat.czxid, stat.ephemeralOwner)

    async def find(self, path: str, watch: Watcher | None = None) -> Node | None:
        """The node, or None. The watch also fires when the node is created."""
        try:
            return await self.get(path, watch)
        except NoNode:
            if watch is None:
                return None
        node, watcher = self._node(path), self._one_shot(watch)
        stat = await self._call(lambda it: it.exists_async(node, watch=watcher), path)
        return None if stat is None else await self.find(path, watch)

    async def children(self, path: str, watch: Watcher | None = None) -> list[str]:
        node, watcher = self._node(path), self._one_shot(watch)
        names = await self._call(lambda it: it.get_children_async(node, watch=watcher), path)
        return sorted(names)

    async def create(self, path: str, data: bytes = b"") -> None:
        node, acl = self._node(path), ACLS[self.security.access(path)]
        await self._call(lambda it: it.create_async(node, data, acl), path)

    async def ensure(self, path: str) -> None:
        """Create the node, its parents and the chroot, as far as they are missing."""
        names = [name for name in (self._root + path).split("/") if name]
        for length in range(1, len(names) + 1):
            with contextlib.suppress(NodeExists):
                await self._create_absolute("/" + "/".join(names[:length]))

    async def _create_absolute(self, node: str) -> None:
        is_inside = f"{node}/".startswith(f"{self._root}/")  # of the chroot, or it itself
        access = self.security.access(node.removeprefix(self._root))
        acl = ACLS[access if is_inside else Access.OPEN]
        try:
            await self._call(lambda it: it.create_async(node, b"", acl), node)
        except NoAccess:
            # Of a parent that others own, in which the node may exist.
            if await self._call(lambda it: it.exists_async(node), node) is None:
                raise

    async def access(self, path: str) -> Access:
        """What everyone may do with the node."""
        return (await self.rights(path))[0]

    async def rights(self, path: str) -> tuple[Access, frozenset[str]]:
        """What everyone may do with the node, and the single users, certificates and addresses that
        have rights on it."""
        node = self._node(path)
        acls, _ = await self._call(lambda it: it.get_acls_async(node), path)
        return access_of(acls), identities_of(acls)

    async def set_access(self, path: str, access: Access) -> None:
        node, acl = self._node(path), ACLS[access]
        await self._call(lambda it: it.set_acls_async(node, acl), path)

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        node = self._node(path)
        await self._call(lambda it: it.delete_async(node, version), path)

    async def sync(self) -> None:
        """Later reads see everything that was committed before this call."""
        await self._call(lambda it: it.sync_async("/"), "/")

    async def commit(self, operations: Sequence[Operation]) -> None:
        """All operations or none. Raises the error of the first one that is refused."""
        root = self._root

        def start(client: KazooClient) -> Any:
            transaction = client.transaction()
            for operation in operations:
                match operation:
                    case Check(path, version):
                        transaction.check(root + path, version)
                    case SetData(path, data, version):
                        transaction.set_data(root + path, data, version)
                    case Create(path, data, ephemeral):
                        acl = ACLS[self.security.access(path)]
                        transaction.create(root + path, data, acl, ephemeral=ephemeral)
                    case Delete(path, version):
                        transaction.delete(root + path, version)
            return transaction.commit_async()

        results = await self._call(start, operations[0].path)
        for operation, result in zip(operations, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, _BYSTANDERS):
                raise _translated(result, operation.path)

    async def _call(self, start: Callable[[KazooClient], Any], path: str) -> Any:
        self._check_connected()
        await self._slots.acquire()
        future: asyncio.Future[Any] = self._loop.create_future()
        try:
            self._check_connected()
            result = start(self._client)
        except BaseException:
            self._slots.release()
            raise
        self._unanswered.add(future)
        result.rawlink(lambda it: self._on_loop(self._answered, future, it, path))
        return await future

    def _node(self, path: str) -> str:
        return self._root + path or "/"

    def _check_connected(self) -> None:
        if not self.is_connected or self._is_closed:
            raise NotConnected(f"no connection to ZooKeeper at {self.hosts}")

    def _answered(self, future: asyncio.Future[Any], result: Any, path: str) -> None:
        self._slots.release()
        self._unanswered.discard(future)
        if future.done():
            return
        if result.exception is not None:
            future.set_exception(_translated(result.exception, path))
        else:
            future.set_result(result.value)

    def _fail_unanswered(self) -> None:
        """kazoo fails most of them itself. One that came at the moment of the loss is queued, and
        would be sent with the next connection."""
        for future in self._unanswered:
            if not future.done():
                future.set_exception(_unknown(self.hosts))
        self._unanswered.clear()

    def _one_shot(self, watch: Watcher | None) -> Callable[[object], None] | None:
        """The same function for the same watcher: kazoo calls one that it has twice only once."""
        if watch is None:
            return None
        if watch not in self._watchers:
            self._watchers[watch] = lambda event: self._on_loop(watch)
        return self._watchers[watch]

    # Events of kazoo's threads

    def _on_kazoo_state(self, state: str) -> None:
        if state != KazooState.CONNECTED:  # it is not yet authenticated then
            self._on_loop(self._state_changed, state, 0)

    def on_negotiated(self, timeout_ms: int) -> None:
        self._timeout_ms = timeout_ms  # before any answer in this connection
        session_id = self._client.client_id[0]
        self._on_loop(self._state_changed, KazooState.CONNECTED, session_id)

    def on_failure(self, server: str, reason: str) -> None:
        self._on_loop(self._not_connected, server, reason)

    def _not_connected(self, server: str, reason: str) -> None:
        """Attempts are many: only a new reason is logged."""
        if reason != self._failures.get(server):
            self._failures[server] = reason
            logger.warning("cannot connect to ZooKeeper: %s: %s", server, reason)

    def _on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(function, *arguments)

    def _state_changed(self, state: str, session_id: int) -> None:
        if state == KazooState.CONNECTED:
            is_new = session_id != self._id
            self._id = session_id
            if is_new:
                self._proved_at = None
            logger.info(
                "connected to ZooKeeper, %s session 0x%x, time-out %d ms",
                "new" if is_new else "same",
                session_id,
                self._timeout_ms,
            )
            self._connected.set()
            self._failures.clear()
            self._tell(SessionEvent.NEW_SESSION if is_new else SessionEvent.CONNECTED)
            return
        if state == KazooState.LOST:
            self._proved_at = None
        was_connected = self._connected.is_set()
        self._connected.clear()
        self._fail_unanswered()
        if was_connected and not self._is_closed:
            logger.warning("connection to ZooKeeper lost: %s", self.hosts)
            self._tell(SessionEvent.DISCONNECTED)

    def _tell(self, event: SessionEvent) -> None:
        for listener in list(self.listeners):
            listener(event)

    # Proof of contact

    async def _send_heartbeats(self) -> None:
        while True:
            await self._connected.wait()
            sent_at = elapsed_seconds()
            session_id = self._id
            beat = self._loop.create_task(self.sync())
            try:
                is_answered = await self._is_answered(beat)
            finally:
                beat.cancel()
            if is_answered and session_id == self._id:
                self._proved_at = sent_at
            interval = self._timeout_ms / PROOFS_PER_TIMEOUT / 1000
            await asyncio.sleep(max(sent_at + interval - elapsed_seconds(), interval / 4))

    async def _is_answered(self, beat: asyncio.Task[None]) -> bool:
        """Drops the connection if there is no answer in time."""
        await asyncio.wait({beat}, timeout=self._timeout_ms * DROP_SHARE / 1000)
        if not beat.done():
            await asyncio.sleep(0)  # a loop that was busy: its answer may be waiting
        if not beat.done():
            logger.warning("no answer from ZooKeeper: dropping the connection")
            self._client.sockets.drop_connection()
            await asyncio.wait({beat})
        return beat.exception() is None


def elapsed_seconds() -> float:
    """Monotonic time that goes on while the machine is suspended, if the system has such a clock:
    sessions end meanwhile."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def _translated(error: Exception, path: str) -> ZooKeeperError:
    kind = _ERRORS.get(type(error), ZooKeeperError)
    name = type(error).__name__.removesuffix("Error")
    remedy = _REMEDIES.get(type(error))
    translated = kind(f"ZooKeeper: {name}: {path}" + (f": {remedy}" if remedy else ""))
    translated.path = path
    return translated


def _unknown(hosts: str) -> OutcomeUnknown:
    return OutcomeUnknown(f"the connection to ZooKeeper at {hosts} was lost before the answer")
