"""A simulated broker and its cluster as the parts of a broker see them.

The parts (`member`, `serving`, `fetching`) are built by the process, and the process by the
cluster; they know these interfaces, not their builders.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import MetadataRecord
from millstream.coordination.replication.fetch_session import SessionRequest
from millstream.coordination.replication.follower import FetchAnswer, FetchPosition, FollowerReplica
from millstream.coordination.replication.leader import LeaderReplica
from millstream.errors import ErrorCode
from millstream.storage.log import Log
from millstream.testing.simulation.hosts import Disk
from millstream.testing.simulation.invariants import Invariants, Key
from millstream.testing.simulation.network import Network
from millstream.testing.simulation.world import Action, Owner, World
from millstream.testing.simulation.zookeeper import ZooKeeper

ErrorOrNone: TypeAlias = ErrorCode | None
Reply: TypeAlias = Callable[[ErrorOrNone], None]
Positions: TypeAlias = dict[Key, FetchPosition]
Answers: TypeAlias = dict[Key, FetchAnswer]


class FetchResponse(NamedTuple):
    """What a leader answers to a fetch."""

    session_id: int = 0
    error: int = 0
    answers: Answers = {}  # noqa: RUF012


@dataclass
class Waiting:
    """An append that is answered when it is committed."""

    next_offset: int
    reply: Reply


@dataclass
class Replica:
    """A partition's log on this host, and its role."""

    key: Key
    topic: str
    log: Log
    high_watermark: int = 0
    leader_id: int = -1
    leader: LeaderReplica | None = None
    follower: FollowerReplica | None = None
    waiting: list[Waiting] = field(default_factory=list)


class Membership(Protocol):
    broker_epoch: int
    image: ClusterImage


class FetchServer(Protocol):
    """The leader's side of fetches."""

    def fetch(
        self,
        follower: int,
        broker_epoch: int,
        request: SessionRequest[Key],
        reply: Callable[[FetchResponse], None],
    ) -> None: ...

    def offsets(self, key: Key, epoch: int) -> tuple[int, int] | None: ...


class Broker(Owner, Protocol):
    """A process, as its parts see it."""

    id: int
    disk: Disk
    replicas: dict[Key, Replica]

    @property
    def cluster(self) -> Surroundings: ...

    @property
    def member(self) -> Membership: ...

    @property
    def serving(self) -> FetchServer: ...

    @property
    def now_ms(self) -> int: ...

    def after(self, delay_ms: int, name: str, action: Action) -> None: ...

    def image_changed(self) -> None: ...

    def request_flush(self, replica: Replica) -> None: ...

    def advanced(self, replica: Replica) -> None: ...

    def propose(self) -> None: ...


class Surroundings(Protocol):
    """The cluster, as a process and its parts see it."""

    world: World
    network: Network
    invariants: Invariants
    zookeeper: ZooKeeper
    disks: dict[int, Disk]
    prefers_leaders: bool

    @property
    def parts(self) -> Any:
        """The parts under test."""
        ...

    @property
    def processes(self) -> Mapping[int, Broker]: ...

    def reconcile(
        self, image: ClusterImage, live: Mapping[int, uuid.UUID]
    ) -> Sequence[MetadataRecord]: ...

    def stopped(self, process: Any) -> None: ...
