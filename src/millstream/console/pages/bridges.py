"""`/bridges`: bridges that run in the cluster, what passed through them, what was lost and why.

Everything comes from what bridges publish (`millstream.admin.bridges`), so it is the same on any
Kafka cluster. A follower for each session reads the topic on from where it was, with the rights of
the session's user.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field
from weakref import WeakKeyDictionary

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.bridges import (
    BAD,
    IN,
    LOST,
    OTHER,
    OUT,
    BridgeFollower,
    BridgeStatus,
    Sample,
    ShownBridge,
    forget_bridge,
)
from millstream.client.cluster import Cluster
from millstream.console.actions import Form, Refused, act, command, command_of, post
from millstream.console.answers import json_answer, page
from millstream.console.charts import ChartData, Line
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.paths import link
from millstream.console.sessions import Session, in_cluster, session_of
from millstream.errors import ConfigError
from millstream.models import dataclass

LIVE_SECONDS = 2.0
SPARK_POINTS = 60
TONES = {"running": "good", "failing": "bad", "stopped": "warn", "lost": "bad"}
WORDS = {"lost": "no sign of life"}

_followers: WeakKeyDictionary[Session, BridgeFollower] = WeakKeyDictionary()


@dataclass(frozen=True)
class Row:
    """A bridge in the list. Counts are of its run."""

    name: str
    state: str
    word: str
    tone: str
    is_running: bool
    age_ms: int
    into: int
    out: int
    lost: int
    bad: int
    in_per_second: float | None
    out_per_second: float | None
    rates: tuple[float, ...]
    where: str
    addresses: tuple[str, ...]
    problems: tuple[str, ...]
    twins: tuple[str, ...]


@dataclass(frozen=True)
class Bridges:
    """The model of the list."""

    rows: Listed[Row]
    running: int
    troubled: int
    in_per_second: float
    out_per_second: float
    lost: int
    commands: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CountRow:
    """A counter, as the page has it."""

    what: str
    value: int
    reason: str
    where: str  # the other labels


@dataclass(frozen=True)
class OneBridge:
    """The model of a bridge's page."""

    row: Row
    status: BridgeStatus
    now_ms: int
    passed: list[CountRow]
    missing: list[CountRow]  # lost and bad, the most first
    others: list[CountRow]
    charts: dict[str, ChartData]
    commands: dict[str, str]

    @property
    def name(self) -> str:
        return self.row.name


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def follower_of(session: Session) -> BridgeFollower:
    return _followers.setdefault(session, BridgeFollower())


def row_of(shown: ShownBridge) -> Row:
    status, last = shown.status, shown.history[-1] if shown.history else None
    rates = [it.in_per_second + it.out_per_second for it in shown.history[-SPARK_POINTS:]]
    return Row(
        shown.name,
        shown.state,
        WORDS.get(shown.state, shown.state),
        TONES.get(shown.state, ""),
        shown.is_running,
        shown.age_ms,
        status.total(IN),
        status.total(OUT),
        status.total(LOST),
        status.total(BAD),
        last.in_per_second if last is not None and shown.is_running else None,
        last.out_per_second if last is not None and shown.is_running else None,
        tuple(rates),
        status.host,
        status.addresses,
        status.problems,
        shown.twins,
    )


def load_all(cluster: Cluster, follower: BridgeFollower, wanted: Wanted) -> Bridges:
    board = follower.update(cluster, seconds_old_max=LIVE_SECONDS / 2)
    rows = [row_of(it) for it in board.bridges(now_ms())]
    found = listed(
        rows,
        wanted,
        text=lambda it: f"{it.name} {it.word} {it.where} {' '.join(it.addresses)}",
        keys={
            "name": lambda it: it.name,
            "state": lambda it: it.state,
            "in": lambda it: it.into,
            "out": lambda it: it.out,
            "lost": lambda it: it.lost,
            "bad": lambda it: it.bad,
        },
        default="name",
    )
    return Bridges(
        found,
        sum(it.is_running for it in rows),
        sum(it.tone == "bad" for it in rows),
        sum(it.in_per_second or 0.0 for it in rows),
        sum(it.out_per_second or 0.0 for it in rows),
        sum(it.lost for it in rows),
    )


async def show_all(request: Request) -> Response:
    wanted = Wanted.of(request.query_params)
    follower = follower_of(session_of(request))
    commands = {
        "list": command(request, "bridges", "list"),
        "start": command_of("bridge", "edge.toml"),
    }

    def model(cluster: Cluster) -> Bridges:
        found = load_all(cluster, follower, wanted)
        found.commands.update(commands)
        return found

    return await page(
        request, "bridges.html", model, live={"summary": LIVE_SECONDS, "rows": LIVE_SECONDS}
    )


# One bridge


def find(
    cluster: Cluster, follower: BridgeFollower, name: str, *, is_action: bool = False
) -> ShownBridge:
    """As it is now, if that is for an action, or was a moment ago."""
    board = follower.update(cluster, seconds_old_max=0.0 if is_action else LIVE_SECONDS / 2)
    for it in board.bridges(now_ms()):
        if it.name == name:
            return it
    raise HTTPException(404, f"nothing is known of a bridge {name}")


def count_rows(status: BridgeStatus, kinds: Sequence[str], *, most_first: bool) -> list[CountRow]:
    found = [
        CountRow(
            it.name.replace("_", " "),
            it.value,
            it.by.get("reason", it.by.get("outcome", "")),
            _where(it.by),
        )
        for it in status.counts
        if it.kind in kinds
    ]
    return sorted(found, key=lambda it: (-it.value if most_first else 0, it.what, it.where))


def _where(by: Mapping[str, str]) -> str:
    return ", ".join(
        f"{key} {value}" for key, value in by.items() if key not in ("reason", "outcome")
    )


def charts_of(history: Sequence[Sample]) -> dict[str, ChartData]:
    times = [it.at_ms / 1000 for it in history]
    return {
        "passed": ChartData(
            times,
            [
                Line("in", [it.in_per_second for it in history]),
                Line("out", [it.out_per_second for it in history]),
            ],
        ),
        "lost": ChartData(times, [Line("lost", [it.lost for it in history])]),
    }


async def show_one(request: Request) -> Response:
    name = request.path_params["name"]
    follower = follower_of(session_of(request))
    commands = {
        "list": command(request, "bridges", "list", "--json"),
        "forget": command(request, "bridges", "forget", name),
    }

    def model(cluster: Cluster) -> OneBridge:
        shown = find(cluster, follower, name)
        status = shown.status
        return OneBridge(
            row_of(shown),
            status,
            now_ms(),
            count_rows(status, (IN, OUT), most_first=False),
            count_rows(status, (LOST, BAD), most_first=True),
            count_rows(status, (OTHER,), most_first=False),
            charts_of(shown.history),
            commands,
        )

    return await page(
        request,
        "bridge.html",
        model,
        live={"now": LIVE_SECONDS, "counts": LIVE_SECONDS},
        events=lambda it: it.charts,
    )


async def show_history(request: Request) -> Response:
    """The data of the charts."""
    name, of = request.path_params["name"], request.query_params.get("of")
    follower = follower_of(session_of(request))
    shown = await in_cluster(request, lambda cluster: find(cluster, follower, name))
    charts = charts_of(shown.history)
    if of is not None and of not in charts:
        raise HTTPException(404, f"of={of}: it must be one of {', '.join(charts)}")
    return json_answer(charts if of is None else charts[of])


async def forget(request: Request, form: Form) -> Response:
    name = request.path_params["name"]
    follower = follower_of(session_of(request))

    def perform(cluster: Cluster) -> None:
        shown = find(cluster, follower, name, is_action=True)
        try:
            forget_bridge(cluster, shown)
        except ConfigError as error:
            raise Refused(str(error)) from error
        follower.update(cluster)

    return await act(
        request,
        perform,
        done=f"{name} is removed from the list.",
        command=command(request, "bridges", "forget", name),
        back=link("bridges"),
    )


ROUTES = [
    Route("/bridges", show_all),
    Route("/bridges/{name:name}", show_one),
    Route("/bridges/{name:name}/history", show_history),
    post("/bridges/{name:name}/forget", forget),
]
