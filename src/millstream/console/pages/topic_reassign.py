"""`/topics/NAME/reassign`: move the replicas of a topic to other brokers, or change their number: a
plan, its start, its progress, and leaving off."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.cluster_state import (
    NOT_PREFERRED,
    BrokerState,
    PartitionState,
    cluster_state,
    topic_state,
)
from millstream.admin.log_dirs import log_dirs
from millstream.admin.placement import CannotPlace
from millstream.admin.reassignments import (
    Move,
    plan_moves,
    reassignments,
    remove_unused_throttles,
    start_moves,
)
from millstream.admin.settings import Resource, settings_of
from millstream.admin.throttling import FOLLOWERS, LEADERS
from millstream.client.cluster import Cluster
from millstream.console.actions import Form, Refused, act, check_typed, command, post
from millstream.console.answers import page
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.pages.cluster import Move as Progress
from millstream.console.pages.cluster import progress_of
from millstream.console.paths import link
from millstream.errors import ApiError, MillstreamError
from millstream.models import dataclass

LIVE_SECONDS = 2.0
THROTTLE_MAX = 2**40


@dataclass(frozen=True)
class Wish:
    """Where the replicas should be."""

    brokers: tuple[int, ...] = ()
    factor: int | None = None  # as many as now
    throttle: int | None = None  # bytes per second
    is_given: bool = False

    @classmethod
    def of(cls, brokers: Sequence[str], factor: str, throttle: str, is_given: bool) -> Wish:
        """Raises `Refused`."""
        ids = sorted({_number(it, "a broker", 2**31 - 1) for it in brokers if it.strip()})
        if is_given and not ids:
            raise Refused("choose the brokers that may have replicas")
        return cls(
            tuple(ids),
            _number(factor, "the number of replicas", 1000) if factor else None,
            _number(throttle, "the throttle", THROTTLE_MAX) or None if throttle else None,
            is_given,
        )

    def options(self) -> list[str]:
        """Of the command line."""
        found = ["--brokers", ",".join(map(str, self.brokers))] if self.brokers else []
        if self.factor is not None:
            found += ["--replication-factor", str(self.factor)]
        return found + (["--throttle", str(self.throttle)] if self.throttle else [])


def _number(text: str, what: str, most: int) -> int:
    text = text.strip()
    if not text.isascii() or not text.isdigit() or len(text) > 15 or int(text) > most:
        raise Refused(f"{what} must be a whole number up to {most}, not {text[:40]!r}")
    return int(text)


@dataclass(frozen=True)
class ReassignPage:
    """The model. `plan` is what would move; `digest` names it, so that no other one is started."""

    name: str
    brokers: tuple[BrokerState, ...]
    partitions: Listed[PartitionState]
    factor: int
    wish: Wish
    plan: list[Move] | None  # None: nothing was asked for
    digest: str
    problem: str  # why there is no plan
    moving: list[Progress]
    not_preferred: int
    is_throttled: bool
    problems: list[str]
    commands: Mapping[str, str] = field(default_factory=dict)


def digest_of(plan: Sequence[Move]) -> str:
    content = repr([(it.topic, it.partition, it.before, it.after) for it in plan])
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def load(cluster: Cluster, name: str, wanted: Wanted, wish: Wish) -> ReassignPage:
    topic = topic_state(cluster, name)
    problems: list[str] = []
    moving: list[Progress] = []
    try:
        under_way = [it for it in reassignments(cluster) if it.topic == name]
        if under_way:
            on_disk = log_dirs(cluster, partitions=[(name, it.partition) for it in under_way])
            moving = [progress_of(it, on_disk.replicas) for it in under_way]
    except ApiError as error:
        problems.append(str(error))
    plan, problem = None, ""
    if wish.is_given:
        try:
            plan = plan_moves(cluster, [name], wish.brokers, wish.factor)
        except CannotPlace as error:
            problem = str(error)
    return ReassignPage(
        name,
        cluster_state(cluster).brokers,
        _listed(topic.partitions, wanted),
        topic.replicas,
        wish,
        plan,
        digest_of(plan or ()),
        problem,
        moving,
        sum(it.state == NOT_PREFERRED for it in topic.partitions),
        is_throttled(cluster, name),
        problems,
    )


def _listed(partitions: Sequence[PartitionState], wanted: Wanted) -> Listed[PartitionState]:
    return listed(
        partitions,
        wanted,
        text=lambda it: f"{it.index} leader:{it.leader} {it.state or ''}",
        keys={"partition": lambda it: it.index, "leader": lambda it: it.leader},
        default="partition",
    )


def is_throttled(cluster: Cluster, name: str) -> bool:
    try:
        settings = settings_of(cluster, Resource.TOPIC, name)
    except MillstreamError:
        return False
    return any(it.name in (LEADERS, FOLLOWERS) and it.is_own and it.value for it in settings)


async def show(request: Request) -> Response:
    name, query = request.path_params["name"], request.query_params
    wanted = Wanted.of(query)
    wish = Wish.of(
        query.getlist("broker"),
        query.get("factor", "").strip(),
        query.get("throttle", "").strip(),
        "plan" in query,
    )
    base = ("topic", "reassign", name, *wish.options())
    commands = {
        "plan": command(request, *base, "--dry-run"),
        "start": command(request, *base),
        "show": command(request, "topic", "reassign"),
        "cancel": command(request, "topic", "reassign", name, "--cancel"),
        "elect": command(request, "topic", "elect", name),
        "throttle": command(request, "topic", "reassign", "--throttle", "0"),
    }

    def model(cluster: Cluster) -> ReassignPage:
        return replace(load(cluster, name, wanted, wish), commands=commands)

    return await page(request, "topic_reassign.html", model, live={"moving": LIVE_SECONDS})


async def start(request: Request, form: Form) -> Response:
    name = request.path_params["name"]
    check_typed(form, name)
    wish = Wish.of(form.all("broker"), form.get("factor"), form.get("throttle"), True)
    shown = form.need("plan", "the plan")

    def perform(cluster: Cluster) -> int:
        plan = plan_moves(cluster, [name], wish.brokers, wish.factor)
        if not plan:
            raise Refused("nothing has to move: the replicas are where they should be")
        if digest_of(plan) != shown:
            raise Refused("the replicas have changed since this plan was made: look at it again")
        start_moves(cluster, plan, wish.throttle)
        return len(plan)

    return await act(
        request,
        perform,
        done=lambda count: f"{count} partitions of {name} are moving.",
        command=command(request, "topic", "reassign", name, *wish.options()),
        back=link("topics", name, "reassign"),
    )


async def remove_throttle(request: Request, form: Form) -> Response:
    name = request.path_params["name"]
    return await act(
        request,
        remove_unused_throttles,
        [name],
        done=f"The throttle of {name} is removed.",
        command=command(request, "topic", "reassign", "--throttle", "0"),
        back=link("topics", name, "reassign"),
    )


ROUTES = [
    Route("/topics/{name:name}/reassign", show),
    post("/topics/{name:name}/reassign", start),
    post("/topics/{name:name}/reassign/throttle", remove_throttle),
]
