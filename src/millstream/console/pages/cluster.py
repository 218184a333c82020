"""`/cluster`: brokers, log directories, partitions that need attention, reassignments, the metadata
quorum and features; electing leaders, cancelling reassignments. `/cluster/brokers/ID`: one broker
and its settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.cluster_state import (
    NOT_PREFERRED,
    OFFLINE,
    STATES,
    UNDER_REPLICATED,
    BrokerState,
    ClusterState,
    PartitionState,
    cluster_state,
)
from millstream.admin.log_dirs import DirectoryState, LogDirs, ReplicaState, log_dirs
from millstream.admin.quorum import Quorum, quorum
from millstream.admin.reassignments import (
    Elected,
    Reassignment,
    cancel_moves,
    elect_leaders,
    reassignments,
)
from millstream.admin.replica_lag import ReplicaLag, replica_lags
from millstream.admin.settings import Resource, Setting, settings_of
from millstream.client.cluster import Cluster
from millstream.console.actions import Form, act, command, post
from millstream.console.answers import page
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.pages.topic import listed_settings, say_elected
from millstream.console.paths import link
from millstream.errors import ApiError
from millstream.models import dataclass

BEHIND_MAX = 20
REPLICAS_LISTED_MAX = 20_000  # of larger clusters, the lag of replicas is not asked for


@dataclass(frozen=True)
class BrokerRow:
    id: int
    address: str
    rack: str | None
    is_controller: bool
    leads: int
    replicas: int
    in_sync: int
    lag: int | None  # records that its replicas have not fetched; None if unknown
    log_bytes: int | None
    is_live: bool = True


@dataclass(frozen=True)
class Move:
    """A reassignment, and how much of the new replicas is there."""

    reassignment: Reassignment
    copied_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class ClusterPage:
    cluster_id: str
    controller: int
    topics: int
    partitions: int
    offline: int
    under_replicated: int
    not_preferred: int
    brokers: list[BrokerRow]
    attention: Listed[PartitionState]
    directories: list[DirectoryState]
    directory_moves: list[ReplicaState]  # replicas on their way to another directory
    moves: list[Move]
    behind: list[ReplicaLag]
    quorum: Quorum
    problems: list[str]


def load(cluster: Cluster, wanted: Wanted) -> ClusterPage:
    state = cluster_state(cluster)
    on_disk = log_dirs(cluster)
    problems = [it.problem for it in on_disk.directories if it.problem]
    moving: list[Reassignment] = []
    try:
        moving = reassignments(cluster)
    except ApiError as error:
        problems.append(str(error))
    lags = replica_lags(cluster, state) if _replicas(state) <= REPLICAS_LISTED_MAX else []
    found = quorum(cluster)
    return ClusterPage(
        cluster_id=state.cluster_id,
        controller=state.controller,
        topics=len(state.topics),
        partitions=state.partition_count,
        offline=state.counts[OFFLINE],
        under_replicated=state.counts[UNDER_REPLICATED],
        not_preferred=state.counts[NOT_PREFERRED],
        brokers=broker_rows(state, on_disk, lags, found.fenced),
        attention=listed_attention(state.attention, wanted),
        directories=on_disk.directories,
        directory_moves=[it for it in on_disk.replicas if it.moving_to is not None],
        moves=[progress_of(it, on_disk.replicas) for it in moving],
        behind=sorted((it for it in lags if it.lag != 0), key=_most_behind)[:BEHIND_MAX],
        quorum=found,
        problems=list(dict.fromkeys(problems)),
    )


def _replicas(state: ClusterState) -> int:
    return sum(it.replicas for it in state.brokers)


def _most_behind(it: ReplicaLag) -> tuple[bool, int]:
    return it.lag is not None, -(it.lag or 0)  # unknown ones first


def broker_rows(
    state: ClusterState, on_disk: LogDirs, lags: Sequence[ReplicaLag], fenced: Sequence[int]
) -> list[BrokerRow]:
    behind: Counter[int] = Counter()
    for lag in lags:
        behind[lag.replica.broker] += lag.lag or 0
    sizes: Counter[int] = Counter()
    for directory in on_disk.directories:
        if directory.path:
            sizes[directory.broker] += directory.log_bytes
    live = [
        BrokerRow(
            it.id,
            it.address,
            it.rack,
            it.is_controller,
            it.leads,
            it.replicas,
            it.in_sync,
            behind[it.id],
            sizes.get(it.id),
        )
        for it in state.brokers
    ]
    return sorted([*live, *_dead(state, fenced)], key=lambda it: it.id)


def _dead(state: ClusterState, fenced: Sequence[int]) -> list[BrokerRow]:
    """Brokers that are registered or have replicas, and are not live."""
    live = {it.id for it in state.brokers}
    replicas: Counter[int] = Counter()
    for topic in state.topics.values():
        for partition in topic.partitions:
            replicas.update(it for it in partition.replicas if it not in live)
    gone = sorted({*fenced, *replicas} - live)
    return [BrokerRow(it, "", None, False, 0, replicas[it], 0, None, None, False) for it in gone]


def listed_attention(
    partitions: Sequence[PartitionState], wanted: Wanted
) -> Listed[PartitionState]:
    return listed(
        partitions,
        wanted,
        text=lambda it: f"{it.topic} {it.state}",
        keys={
            "state": lambda it: (STATES.index(it.state or NOT_PREFERRED), it.topic, it.index),
            "topic": lambda it: (it.topic, it.index),
            "leader": lambda it: it.leader,
        },
        default="state",
    )


def progress_of(moving: Reassignment, replicas: Sequence[ReplicaState]) -> Move:
    sizes = {
        it.broker: it.bytes
        for it in replicas
        if (it.topic, it.partition) == (moving.topic, moving.partition)
    }
    whole = max((sizes.get(it, 0) for it in moving.replicas if it not in moving.adding), default=0)
    copied = sum(min(sizes.get(it, 0), whole) for it in moving.adding)
    return Move(moving, copied, whole * len(moving.adding))


async def show(request: Request) -> Response:
    wanted = Wanted.of(request.query_params)
    return await page(
        request,
        "cluster.html",
        lambda cluster: load(cluster, wanted),
        live={"now": 5.0},
    )


# Actions


async def elect(request: Request, form: Form) -> Response:
    def perform(cluster: Cluster) -> Elected:
        return elect_leaders(cluster, None)

    return await act(
        request,
        perform,
        done=say_elected,
        command=command(request, "topic", "elect", "--all"),
        back=link("cluster"),
    )


async def cancel(request: Request, form: Form) -> Response:
    topic = form.need("topic", "the topic")

    back = link("topics", topic, "reassign") if form.get("back") == "topic" else link("cluster")
    return await act(
        request,
        cancel_moves,
        [topic],
        done=lambda moved: f"{len(moved)} reassignments of {topic} are cancelled.",
        command=command(request, "topic", "reassign", topic, "--cancel"),
        back=back,
    )


# One broker


@dataclass(frozen=True)
class BrokerPage:
    broker: BrokerState
    directories: list[DirectoryState]
    settings: Listed[Setting]
    shown: str  # "set": what differs from the defaults; "all"
    problems: list[str]


def load_broker(cluster: Cluster, broker: int, wanted: Wanted, shown: str) -> BrokerPage:
    state = cluster_state(cluster)
    found = next((it for it in state.brokers if it.id == broker), None)
    if found is None:
        known = ", ".join(str(it.id) for it in state.brokers)
        raise HTTPException(404, f"there is no live broker {broker}; there are {known}")
    problems: list[str] = []
    rows: list[Setting] = []
    try:
        rows = settings_of(cluster, Resource.BROKER, str(broker), documentation=True)
    except ApiError as error:
        problems.append(str(error))
    if shown == "set":
        rows = [it for it in rows if it.source != "default"]
    directories = log_dirs(cluster, [broker]).directories
    problems += [it.problem for it in directories if it.problem]
    return BrokerPage(found, directories, listed_settings(rows, wanted), shown, problems)


async def show_broker(request: Request) -> Response:
    wanted, broker = Wanted.of(request.query_params), request.path_params["id"]
    shown = "all" if request.query_params.get("show") == "all" else "set"
    return await page(
        request, "broker.html", lambda cluster: load_broker(cluster, broker, wanted, shown)
    )


ROUTES = [
    Route("/cluster", show),
    Route("/cluster/brokers/{id:int}", show_broker),
    post("/cluster/elect", elect),
    post("/cluster/cancel", cancel),
]
