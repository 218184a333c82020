"""The services that request handlers may use, and the context in which a handler is called.

The composition root (`server`) builds everything and fills in a `Services`; handlers depend on that
and not on the server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from millstream.security.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from millstream.broker.archiving.archiving import Archiving
    from millstream.broker.backlog.backlog import BacklogPolicies
    from millstream.broker.backlog.budget import HoldBudget
    from millstream.broker.coordinators.registry import Coordinators
    from millstream.broker.counters import Counters
    from millstream.broker.deferred import Buffers, Deferred
    from millstream.broker.metadata.actions import ClusterActions
    from millstream.broker.metadata.cache import MetadataCache
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.metadata.producer_ids import ProducerIds
    from millstream.broker.metadata.store import MetadataLog
    from millstream.broker.metadata.topics import TopicManager
    from millstream.broker.peers.peers import Peers
    from millstream.broker.quotas.clients import ClientQuotas, Usage
    from millstream.broker.replicas.fetch_pacing import FetchPacer
    from millstream.broker.replicas.fetch_sessions import FetchSessionCache
    from millstream.broker.replicas.produce_templates import ProduceTemplates
    from millstream.broker.replicas.table import PartitionTable
    from millstream.broker.replication.log_moves import LogMoves
    from millstream.broker.replication.throttles import Throttles
    from millstream.broker.security.audit import Audit
    from millstream.broker.security.authorizer import Authorizer, Rights
    from millstream.broker.sharing.partitions import SharePartitions
    from millstream.broker.tasks import Tasks
    from millstream.broker.telemetry.clients import ClientTelemetry
    from millstream.broker.turn import Turn
    from millstream.clock import Clock
    from millstream.config.broker import BrokerConfig
    from millstream.protocol.wire import Buffer
    from millstream.storage.directories import LogDirectories

NEVER_MS = -(1 << 62)  # earlier than any time of a clock


class Load:
    """Load of the broker: fetch responses are larger while there are no producers."""

    __slots__ = ("last_produce_ms",)

    def __init__(self) -> None:
        self.last_produce_ms = NEVER_MS  # monotonic


class Throttling:
    """The quotas of clients, while the cluster has any: see network/quotas.py."""

    __slots__ = ("quotas",)

    def __init__(self) -> None:
        self.quotas: ClientQuotas | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Services:
    """Everything a handler may use. All of it belongs to the event loop's thread."""

    broker_id: int
    cluster_id: str
    loop: asyncio.AbstractEventLoop
    clock: Clock
    metadata: MetadataLog
    metadata_cache: MetadataCache
    configs: ConfigManager
    topics: TopicManager
    actions: ClusterActions
    producer_ids: ProducerIds
    peers: Peers
    coordinators: Coordinators
    partitions: PartitionTable
    throttles: Throttles  # of replication
    throttling: Throttling  # of clients
    directories: LogDirectories
    log_moves: LogMoves
    fetch_sessions: FetchSessionCache
    produce_templates: ProduceTemplates
    backlog: BacklogPolicies
    archiving: Archiving
    load: Load
    tasks: Tasks
    turn: Turn
    counters: Counters | None  # if metrics are served
    telemetry: ClientTelemetry | None  # if metrics of clients are collected
    authorizer: Authorizer | None = None  # None: everyone may do everything
    audit: Audit | None = None
    start_sharing: Callable[[], SharePartitions]
    """Called once, for the first share group: its modules are imported only then."""

    @property
    def config(self) -> BrokerConfig:
        """The settings in force now."""
        return self.configs.current

    @property
    def controller_id(self) -> int:
        """The broker to which clients send administrative requests. Any broker can decide, so it
        is this one if there is no controller, or none that is known."""
        known = self.metadata.controller_id
        return self.broker_id if known is None else known

    @property
    def active_share_partitions(self) -> SharePartitions | None:
        """The same, if there is a share group; its code is not loaded for this."""
        return self.__dict__.get("share_partitions")

    @cached_property
    def share_partitions(self) -> SharePartitions:
        return self.start_sharing()


def _without_connection(ms: int) -> None:
    """There is nothing to mute: the request did not come over a connection."""


class FastPath(Protocol):
    """Serves requests that are like an earlier one of the client."""

    def serve(self, context: RequestContext, body: Buffer) -> Buffers | Deferred | None:
        """The response; None if the request needs the full path."""
        ...


class Client:
    """The client of a connection."""

    __slots__ = (
        "fetch_pacer",
        "fetch_usage",
        "hold_budget",
        "mute",
        "port",
        "principal",
        "repeated_fetch",
        "rights",
        "software",
        "takes_files",
    )

    def __init__(self, mute: Callable[[int], None] = _without_connection) -> None:
        self.mute = mute  # throttle it: handle none of its requests for so many ms
        self.principal: Principal = ANONYMOUS  # who it is, once it is authenticated
        self.rights: Rights | None = None  # what it may do; None: everything
        self.port = 0  # from which it connects
        self.takes_files = False  # whether responses can contain ranges of files
        self.software = ""  # name and version, if it has sent them (KIP-511)
        self.hold_budget: HoldBudget | None = None  # once a request has been held
        # What its client id has fetched, once it is known whether there is a quota for that.
        self.fetch_usage: tuple[str | None, Usage | None] | None = None
        self.fetch_pacer: FetchPacer | None = None  # once it has read in bulk, if it needs one
        self.repeated_fetch: FastPath | None = None  # of requests like its latest Fetch


class RequestContext(NamedTuple):
    """The origin and version of a request, and the services of the broker that answers it.

    One object is shared by all requests with the same values (a connection keeps them), so it
    contains nothing about a single request.
    """

    services: Services
    api_version: int
    client_id: str | None
    client_host: str
    listener: str  # the name of the listener
    connection_id: int  # incremented with every accepted connection
    response_bytes_max: Callable[[], int]  # for a response produced now: see network/memory.py
    client: Client
