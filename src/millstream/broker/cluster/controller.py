"""The controller: one broker, elected, turns the presence of brokers into records.

    /controller          ephemeral; Kafka's JSON
    /controller_epoch    the number of the last election

An election is one transaction: create the first and set the second, whose version it expects. All
commits of the controller check that version, so those of a former one fail (`Fenced`).

What it decides is in `coordination/replication/controller`, and depends only on the image and on
the brokers' nodes. It decides again when either changes. A new controller does the same with what
it finds, so nothing is handed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.cluster.home import Fenced, ZooKeeperMetadata
from millstream.broker.cluster.membership import IDS, incarnation_of, read_node
from millstream.broker.cluster.session import (
    BadVersion,
    Check,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotConnected,
    OutcomeUnknown,
    SessionEvent,
    SetData,
    ZooKeeperSession,
    elapsed_seconds,
)
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.replication import controller as machine
from millstream.errors import ApiError

if TYPE_CHECKING:
    from millstream.clock import Clock
    from millstream.coordination.cluster_records import MetadataRecord

logger = logging.getLogger(__name__)

CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
JSON_VERSION = 2
RECORDS_MAX = 20_000  # per commit; the rest follows with the next
RETRY_SECONDS = 0.1
ERROR_SECONDS = 1.0


class Election(NamedTuple):
    """One that this broker has won."""

    epoch: int
    epoch_version: int  # of the node /controller_epoch
    session_id: int


@dataclass(frozen=True, slots=True)
class Policy:
    """What the controller may do."""

    is_unclean_allowed: Callable[[ClusterImage, str], bool] = lambda image, topic: False
    rebalance_seconds: float | None = None  # None: leaders stay where they are
    imbalance_percent: int = 10


class Controller:
    """This broker as a candidate, and as the controller if it is elected."""

    def __init__(
        self,
        session: ZooKeeperSession,
        home: ZooKeeperMetadata,
        clock: Clock,
        *,
        node_id: int,
        policy: Policy | None = None,
    ) -> None:
        self._session = session
        self._home = home
        self._clock = clock
        self._node_id = node_id
        self._policy = policy or Policy()
        self._wake = asyncio.Event()
        self._are_nodes_read = False
        self._live: Mapping[int, uuid.UUID] = {}
        self._election: Election | None = None
        self._other_id: int | None = None
        self._other_epoch = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        election = self._election
        return election is not None and election.session_id == self._session.id

    @property
    def current_id(self) -> int | None:
        """The broker that is the controller, as far as this one knows."""
        return self._node_id if self.is_active else self._other_id

    @property
    def epoch(self) -> int:
        """Of the last election that this broker has won; 0: none."""
        return 0 if self._election is None else self._election.epoch

    @property
    def current_epoch(self) -> int:
        """The epoch of the controller, as far as this broker knows."""
        return self.epoch if self.is_active else self._other_epoch

    def start(self) -> None:
        if self._task is None:
            self._home.subscribe(self._on_image)
            self._session.listeners.append(self._on_session)
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Let another broker be elected at once."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._session.listeners.remove(self._on_session)
        if self.is_active:
            with contextlib.suppress(NoNode, NotConnected, OutcomeUnknown):
                await self._session.delete(CONTROLLER)
        self._election = None

    # Notices

    def _on_image(self, before: ClusterImage, now: ClusterImage) -> None:
        if before.brokers is not now.brokers:
            self._are_nodes_read = False  # a registration may belong to a newer node
        self._wake.set()

    def _on_session(self, event: SessionEvent) -> None:
        self._on_nodes()

    def _on_nodes(self) -> None:
        self._are_nodes_read = False
        self._wake.set()

    # Life

    async def _run(self) -> None:
        while True:
            try:
                election = await self._stand()
                self._election = election
                logger.info("broker %d is the controller, epoch %d", self._node_id, election.epoch)
                await self._govern(election)
            except (NotConnected, OutcomeUnknown):
                await asyncio.sleep(RETRY_SECONDS)
                await self._session.wait_until_connected()
            except Fenced:
                logger.warning("broker %d is no longer the controller", self._node_id)
            except ApiError as error:
                logger.warning("the controller cannot commit: %s; retrying", error)
                await asyncio.sleep(ERROR_SECONDS)
            except Exception:
                logger.exception("the controller failed; retrying")
                await asyncio.sleep(ERROR_SECONDS)

    async def _stand(self) -> Election:
        """Wait until there is no controller, and be elected."""
        await self._session.ensure(IDS)
        with contextlib.suppress(NodeExists):
            await self._session.create(CONTROLLER_EPOCH, b"0")
        while True:
            self._wake.clear()
            # In this order: if /controller is still this session's, the epoch is that of its
            # election.
            epoch = await self._session.get(CONTROLLER_EPOCH)
            node = await self._session.find(CONTROLLER, self._wake.set)
            if node is not None and node.ephemeral_owner == self._session.id:
                return Election(int(epoch.data), epoch.version, self._session.id)
            self._election = None
            self._other_id = None if node is None else read_node(node.data).get("brokerid")
            with contextlib.suppress(NodeExists, NoNode, BadVersion):
                if node is None:
                    return await self._elect(int(epoch.data) + 1, epoch.version)
                if read_node(node.data).get("brokerid") == self._node_id:
                    # Of a former process: this broker's id is claimed, so that one is dead.
                    await self._session.commit([Delete(CONTROLLER, node.version)])
                    continue
                # Read after the node: if that changes meanwhile, its watch has fired.
                self._other_epoch = int((await self._session.get(CONTROLLER_EPOCH)).data)
                await self._wake.wait()

    async def _elect(self, epoch: int, version: int) -> Election:
        session_id = self._session.id
        now = str(self._clock.now_ms())
        fields = {"version": JSON_VERSION, "brokerid": self._node_id, "timestamp": now}
        content = json.dumps({**fields, "kraftControllerEpoch": -1}).encode()
        await self._session.commit(
            [
                Create(CONTROLLER, content, ephemeral=True),
                SetData(CONTROLLER_EPOCH, str(epoch).encode(), version),
            ]
        )
        return Election(epoch, version + 1, session_id)

    async def _govern(self, election: Election) -> None:
        """Until another controller is elected, or the node is deleted."""
        rebalance_seconds = self._policy.rebalance_seconds
        next_rebalance = elapsed_seconds() + (rebalance_seconds or 0.0)
        self._are_nodes_read = False
        while True:
            self._wake.clear()
            if not self._are_nodes_read and not await self._read_nodes():
                return
            await self._commit(election, self._reconcile)
            wait_seconds = None
            if rebalance_seconds is not None:
                wait_seconds = max(next_rebalance - elapsed_seconds(), 0.0)
                if not wait_seconds:
                    await self._commit(election, self._rebalance)
                    next_rebalance = elapsed_seconds() + rebalance_seconds
                    continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()

    async def _read_nodes(self) -> bool:
        """Which brokers are live; False if this one is no longer the controller."""
        self._are_nodes_read = True  # unless a watch fires meanwhile
        await self._session.sync()
        node = await self._session.find(CONTROLLER, self._on_nodes)
        if node is None or node.ephemeral_owner != self._session.id:
            return False
        live: dict[int, uuid.UUID] = {}
        for name in await self._session.children(IDS, self._on_nodes):
            broker = await self._session.find(f"{IDS}/{name}")
            incarnation = None if broker is None else incarnation_of(broker.data)
            if incarnation is not None and name.isdigit():
                live[int(name)] = incarnation
        self._live = live
        return True

    async def _commit(
        self, election: Election, decide: Callable[[ClusterImage], Sequence[MetadataRecord]]
    ) -> None:
        condition = Check(CONTROLLER_EPOCH, election.epoch_version)
        while decide(self._home.image):  # else there is nothing to ask ZooKeeper for
            await self._home.change_if(lambda image: decide(image)[:RECORDS_MAX], condition)

    def _reconcile(self, image: ClusterImage) -> Sequence[MetadataRecord]:
        allowed = self._policy.is_unclean_allowed
        return machine.reconcile(
            image, self._live, is_unclean_allowed=lambda topic: allowed(image, topic)
        )

    def _rebalance(self, image: ClusterImage) -> Sequence[MetadataRecord]:
        return machine.prefer(image, imbalance_percent=self._policy.imbalance_percent)
