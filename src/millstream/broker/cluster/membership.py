"""This broker's membership in the cluster: its ephemeral node, and its registration.

    /brokers/ids/N    ephemeral; Kafka's JSON, and "incarnation" and "directories"

A broker that starts creates its node and commits its registration, fenced, with a new incarnation.
The controller unfences it: it has seen a node with the incarnation that is registered. After its
session has expired, or its node was deleted, the broker does the same again, as a new incarnation:
others may have led its partitions in the meantime.

The node of a former process may still exist, because its session has not ended yet. If it has one
of this broker's log directories, that process is dead, because this one holds the locks of the
directories: the node is replaced at once. Any other node belongs to another broker with the same
id, which may be alive: this one waits for the length of a session, and then refuses to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from millstream.broker.cluster.session import (
    BadVersion,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotConnected,
    OutcomeUnknown,
    SessionEvent,
    ZooKeeperSession,
    elapsed_seconds,
)
from millstream.coordination.cluster_records import RegisterBrokerRecord
from millstream.coordination.replication import controller as machine
from millstream.errors import ApiError, MillstreamError
from millstream.security.protocol import SecurityProtocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.broker.metadata.store import Decision, Subscriber
    from millstream.clock import Clock
    from millstream.coordination.cluster import ClusterImage
    from millstream.coordination.cluster_records import MetadataRecord

logger = logging.getLogger(__name__)

IDS = "/brokers/ids"
JSON_VERSION = 5
GRACE_SECONDS = 2.0  # after the session of another broker should have ended
RETRY_SECONDS = 0.1
WARNING_SECONDS = 10.0


class Log(Protocol):
    """What it needs of the metadata's home."""

    @property
    def image(self) -> ClusterImage: ...

    def subscribe(self, subscriber: Subscriber) -> None: ...

    async def change(self, decide: Decision) -> ClusterImage: ...


class Membership:
    """See the module."""

    def __init__(
        self,
        session: ZooKeeperSession,
        log: Log,
        clock: Clock,
        *,
        node_id: int,
        has_kept_records: Callable[[ClusterImage], bool] = lambda image: False,
    ) -> None:
        """`has_kept_records`: whether this process has found all records that the former one has
        reported, so that it can stay in in-sync sets."""
        self._session = session
        self._log = log
        self._clock = clock
        self._node_id = node_id
        self._has_kept_records = has_kept_records
        self._path = f"{IDS}/{node_id}"
        self._registration: RegisterBrokerRecord | None = None
        self._incarnations: set[uuid.UUID] = set()  # of this process
        self._enrolled_session = 0  # in which the node exists and the registration is committed
        self._was_enrolled = False  # since this process has started
        self._changed = asyncio.Event()
        self._image_changed = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def is_live(self) -> bool:
        """Whether this broker is a member, as far as it can prove."""
        session = self._session
        return self._enrolled_session == session.id and session.is_proved

    async def register(
        self, broker: RegisterBrokerRecord, when_claimed: Callable[[], None] = lambda: None
    ) -> None:
        """Become a member; returns when the controller has unfenced this broker. Raises
        `MillstreamError` if another broker has the same id. `when_claimed` is called as soon as it
        is certain that no other one has."""
        await self._session.repeating(lambda: self._session.ensure(IDS))
        self._log.subscribe(self._on_image)
        self._registration = broker
        await self._session.repeating(lambda: self._claim_node(broker))
        when_claimed()
        await self._commit_registration(broker)
        self._session.listeners.append(self._on_session)
        self._keeping = asyncio.get_running_loop().create_task(self._keep_enrolled())
        self._changed.set()
        await self._wait_until_unfenced()

    async def leave(self) -> None:
        """Stop being a member. Without a connection, the end of the session does the same."""
        was_enrolled = self._enrolled_session != 0
        self._enrolled_session = 0
        if self._keeping is not None:
            self._keeping.cancel()
            self._session.listeners.remove(self._on_session)
            self._keeping = None
        if not was_enrolled or not self._session.is_connected:
            return
        with contextlib.suppress(NoNode, NotConnected, OutcomeUnknown):
            await self._session.delete(self._path)
        with contextlib.suppress(ApiError):
            await self._log.change(self._fence)

    def _fence(self, image: ClusterImage) -> Sequence[MetadataRecord]:
        """What the controller will decide when it misses this broker."""
        broker = image.brokers.get(self._node_id)
        if broker is None or broker.incarnation_id not in self._incarnations:
            return []
        live = {
            it.id: it.incarnation_id
            for it in image.brokers.values()
            if not it.fenced and it.id != self._node_id
        }
        return machine.reconcile(image, live)

    # Enrolling

    async def _claim_node(self, broker: RegisterBrokerRecord) -> None:
        """Create the ephemeral node."""
        self._incarnations.add(broker.incarnation_id)
        data = node_content(broker, self._clock.now_ms())
        deadline = elapsed_seconds() + self._session.timeout_ms / 1000 + GRACE_SECONDS
        create = Create(self._path, data, ephemeral=True)
        while True:
            node = await self._session.find(self._path)
            with contextlib.suppress(NodeExists, NoNode, BadVersion):
                if node is None:
                    return await self._session.commit([create])
                if node.ephemeral_owner == self._session.id and node.data == data:
                    return None
                if self._is_own(node, broker):
                    delete = Delete(self._path, node.version)
                    return await self._session.commit([delete, create])
            if node is not None and elapsed_seconds() > deadline:
                raise self._same_id(node)
            await asyncio.sleep(RETRY_SECONDS)

    def _is_own(self, node: Node, broker: RegisterBrokerRecord) -> bool:
        """Whether no other process can be behind it."""
        content = read_node(node.data)
        if _uuid(content.get("incarnation")) in self._incarnations:
            return True
        directories = {_uuid(it) for it in content.get("directories", ())}
        return not directories.isdisjoint(broker.log_dirs)

    def _same_id(self, node: Node) -> MillstreamError:
        endpoints = ", ".join(map(str, read_node(node.data).get("endpoints", ["?"])))
        return MillstreamError(
            f"another broker with id {self._node_id} is in the cluster at {self._session.hosts} "
            f"({endpoints}): stop it, or start this one with another --node-id"
        )

    async def _commit_registration(self, broker: RegisterBrokerRecord) -> None:
        session_id = self._session.id

        def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
            known = image.brokers.get(self._node_id)
            if known is not None and known.incarnation_id == broker.incarnation_id:
                return []
            # A process that registers again, after its session has ended, has lost nothing.
            has_kept = self._was_enrolled or self._has_kept_records(image)
            record = broker._replace(broker_epoch=image.version + 1)
            return machine.register(image, record, has_kept_records=has_kept)

        await self._log.change(decide)
        self._enrolled_session = session_id
        self._was_enrolled = True

    async def _wait_until_unfenced(self) -> None:
        while True:
            self._image_changed.clear()
            broker = self._log.image.brokers.get(self._node_id)
            if broker and not broker.fenced and broker.incarnation_id in self._incarnations:
                return
            try:
                async with asyncio.timeout(WARNING_SECONDS):
                    await self._image_changed.wait()
            except TimeoutError:
                logger.warning("waiting for the controller to admit broker %d", self._node_id)

    def _on_image(self, before: ClusterImage, now: ClusterImage) -> None:
        if before.brokers is not now.brokers:
            self._image_changed.set()
            if self._node_id not in now.brokers:  # unregistered while it was starting
                self._changed.set()

    # Staying enrolled

    def _on_session(self, event: SessionEvent) -> None:
        if event is SessionEvent.NEW_SESSION:
            self._enrolled_session = 0
        if event is not SessionEvent.DISCONNECTED:
            self._changed.set()

    async def _keep_enrolled(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._enroll_again()
            except (NotConnected, OutcomeUnknown):
                await asyncio.sleep(RETRY_SECONDS)
                await self._session.wait_until_connected()
                self._changed.set()
            except MillstreamError as error:
                logger.error("broker %d is not in the cluster: %s", self._node_id, error)
                await asyncio.sleep(RETRY_SECONDS)
                self._changed.set()

    async def _enroll_again(self) -> None:
        """If the node is not there in this session: as a new incarnation."""
        registered = self._registration
        assert registered is not None
        node = await self._session.find(self._path, self._changed.set)
        is_own = node is not None and node.ephemeral_owner == self._session.id
        is_registered = self._node_id in self._log.image.brokers
        if is_own and is_registered and self._enrolled_session == self._session.id:
            return
        self._enrolled_session = 0
        if not is_own:
            registered = registered._replace(incarnation_id=uuid.uuid4())
            self._registration = registered
            logger.warning("broker %d was not in the cluster: registering it again", self._node_id)
        await self._claim_node(registered)
        await self._commit_registration(registered)
        self._changed.set()  # watch the new node


def node_content(broker: RegisterBrokerRecord, now_ms: int) -> bytes:
    """The content of a broker's node: Kafka's, and what Millstream adds."""
    first = broker.endpoints[0]
    return json.dumps(
        {
            "version": JSON_VERSION,
            "host": first.host,
            "port": first.port,
            "endpoints": [f"{it.name}://{it.host}:{it.port}" for it in broker.endpoints],
            "listener_security_protocol_map": {
                it.name: SecurityProtocol(it.security_protocol).name for it in broker.endpoints
            },
            "rack": broker.rack,
            "jmx_port": -1,
            "timestamp": str(now_ms),
            "features": {},
            "incarnation": str(broker.incarnation_id),
            "directories": [str(it) for it in broker.log_dirs],
        }
    ).encode()


def read_node(data: bytes) -> dict[str, Any]:
    """Its fields; none if it is not readable, as an empty node made by hand."""
    try:
        content = json.loads(data)
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def incarnation_of(data: bytes) -> uuid.UUID | None:
    return _uuid(read_node(data).get("incarnation"))


def _uuid(text: object) -> uuid.UUID | None:
    try:
        return uuid.UUID(str(text))
    except ValueError:
        return None
