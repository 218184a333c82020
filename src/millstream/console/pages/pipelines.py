"""`/pipelines`: what runs in the cluster, each with its graph, numbers, versions and matches.

Everything comes from what pipelines publish (`millstream.admin.pipeline_records`), so it is the
same on any Kafka cluster. A follower for each session reads the topic on from where it was, with
the rights of the session's user.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.pipeline_board import Board, Sample, Shown
from millstream.admin.pipeline_records import Action, DiffShown, VersionsShown
from millstream.admin.pipelines import PipelineFollower, forget_pipeline, send_command
from millstream.client.cluster import Cluster
from millstream.console.actions import Form, Refused, act, command, post
from millstream.console.answers import json_answer, page
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.paths import link
from millstream.console.pipeline_graphs import GraphNode, graph_of
from millstream.console.pipeline_matches import Matches, MatchReader
from millstream.console.sessions import Session, in_cluster, session_of
from millstream.errors import ConfigError
from millstream.models import dataclass

LIVE_SECONDS = 2.0
MATCHES_SECONDS = 5.0
SPARK_POINTS = 60
TONES = {
    "working": "good",
    "waiting": "good",
    "starting": "info",
    "stopping": "warn",
    "stopped": "warn",
    "done": "",
    "failed": "bad",
    "lost": "bad",
}
WORDS = {"waiting": "running", "working": "running", "lost": "no sign of life"}

_followers: WeakKeyDictionary[Session, PipelineFollower] = WeakKeyDictionary()
_matches: WeakKeyDictionary[Session, MatchReader] = WeakKeyDictionary()


@dataclass(frozen=True)
class Row:
    """A pipeline in the list, or a version beside others."""

    identity: str
    pipeline: str
    version: str
    description: str
    state: str
    word: str
    tone: str
    is_running: bool
    age_ms: int
    rows_per_second: float | None
    rates: tuple[float, ...]
    lag: int | None
    batch_ms: int | None
    watermark_delay_ms: int | None
    late: int
    bad: int
    state_bytes: int
    where: str
    is_in_force: bool


@dataclass(frozen=True)
class Pipelines:
    """The model of the list."""

    rows: Listed[Row]
    exists: bool  # whether anything was ever published
    running: int
    troubled: int
    rows_per_second: float
    lag: int


@dataclass(frozen=True)
class Late:
    """Rows that came after the watermark."""

    dropped: int
    diverted: int
    corrected: int


@dataclass(frozen=True)
class OnePipeline:
    """The model of a pipeline's page."""

    row: Row
    shown: Shown
    now_ms: int
    late: Late
    graph: tuple[GraphNode, ...]
    phases: tuple[tuple[str, int], ...]
    versions: VersionsShown | None
    siblings: tuple[Row, ...]  # versions of it that are known, this one among them
    diff: DiffShown | None
    matches: Matches | None
    stop: str  # the command lines
    restart: str
    forget: str


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def follower_of(session: Session) -> PipelineFollower:
    return _followers.setdefault(session, PipelineFollower())


def row_of(shown: Shown, board: Board, at_ms: int) -> Row:
    about, status = shown.about, shown.status
    versions = board.versions(about.pipeline)
    mark = status.watermark_ms
    state = shown.state
    return Row(
        shown.identity,
        about.pipeline,
        about.version,
        about.description,
        state,
        WORDS.get(state, state),
        TONES.get(state, ""),
        shown.is_running,
        shown.age_ms,
        status.rows_per_second if shown.is_running else None,
        tuple(it.rows_per_second for it in shown.history[-SPARK_POINTS:]),
        status.lag,
        status.batch_ms,
        None if mark is None else max(at_ms - mark, 0),
        sum(status.late.values()),
        status.bad,
        status.state_bytes,
        about.host,
        versions is not None and versions.in_force == about.version,
    )


def load_all(cluster: Cluster, follower: PipelineFollower, wanted: Wanted) -> Pipelines:
    board, at_ms = follower.update(cluster, seconds_old_max=LIVE_SECONDS / 2), now_ms()
    rows = [row_of(it, board, at_ms) for it in board.pipelines(at_ms)]
    found = listed(
        rows,
        wanted,
        text=lambda it: f"{it.identity} {it.word} {it.description} {it.where}",
        keys={
            "name": lambda it: it.identity,
            "state": lambda it: it.state,
            "rows": lambda it: it.rows_per_second or 0.0,
            "lag": lambda it: it.lag or 0,
            "batch": lambda it: it.batch_ms or 0,
            "watermark": lambda it: it.watermark_delay_ms or 0,
            "late": lambda it: it.late,
            "bad": lambda it: it.bad,
            "size": lambda it: it.state_bytes,
        },
        default="name",
    )
    return Pipelines(
        found,
        follower.exists,
        sum(it.is_running for it in rows),
        sum(it.tone == "bad" for it in rows),
        sum(it.rows_per_second or 0.0 for it in rows),
        sum(it.lag or 0 for it in rows if it.is_running),
    )


async def show_all(request: Request) -> Response:
    wanted = Wanted.of(request.query_params)
    follower = follower_of(session_of(request))
    return await page(
        request,
        "pipelines.html",
        lambda cluster: load_all(cluster, follower, wanted),
        live={"summary": LIVE_SECONDS, "rows": LIVE_SECONDS},
    )


def find(
    cluster: Cluster, follower: PipelineFollower, identity: str, *, is_action: bool = False
) -> Shown:
    """As it is now, if that is for an action, or was a moment ago."""
    for seconds_old_max in (0.0 if is_action else LIVE_SECONDS / 2, 0.0):
        board = follower.update(cluster, seconds_old_max=seconds_old_max)
        for it in board.pipelines(now_ms()):
            if it.identity == identity:
                return it
    raise HTTPException(404, f"no pipeline {identity} has published anything here")


def load_one(
    cluster: Cluster,
    follower: PipelineFollower,
    matches: MatchReader,
    identity: str,
    commands: Sequence[str],
) -> OnePipeline:
    shown = find(cluster, follower, identity)
    board, at_ms = follower.board, now_ms()
    siblings = tuple(
        row_of(it, board, at_ms)
        for it in board.pipelines(at_ms)
        if it.about.pipeline == shown.about.pipeline
    )
    status = shown.status
    late = Late(
        sum(status.late.values()),
        sum(it.late for it in status.outputs.values()),
        sum(it.corrections for it in status.outputs.values()),
    )
    stop, restart, forget = commands
    return OnePipeline(
        row_of(shown, board, at_ms),
        replace(shown, history=()),
        at_ms,
        late,
        graph_of(shown, at_ms),
        phases_of(status.phases_ms),
        board.versions(shown.about.pipeline),
        siblings,
        board.diff(shown.about.pipeline),
        matches.of(cluster, shown, seconds_old_max=MATCHES_SECONDS),
        stop,
        restart,
        forget,
    )


def phases_of(phases_ms: Any) -> tuple[tuple[str, int], ...]:
    """Parts of a batch, the longest first; their sum is `triggerExecution`."""
    parts = [(name, ms) for name, ms in phases_ms.items() if name != "triggerExecution" and ms > 0]
    return tuple(sorted(parts, key=lambda it: -it[1]))


async def show_one(request: Request) -> Response:
    identity = request.path_params["name"]
    follower = follower_of(session_of(request))
    matches = _matches.setdefault(session_of(request), MatchReader())
    commands = [command(request, "pipelines", it, identity) for it in ("stop", "restart", "forget")]
    return await page(
        request,
        "pipeline.html",
        lambda cluster: load_one(cluster, follower, matches, identity, commands),
        live={
            "state": LIVE_SECONDS,
            "numbers": LIVE_SECONDS,
            "graph": LIVE_SECONDS,
            "versions": LIVE_SECONDS,
            "matches": MATCHES_SECONDS,
        },
    )


async def show_history(request: Request) -> Response:
    """What is plotted: all series, or the one that `?of=` names."""
    identity, of = request.path_params["name"], request.query_params.get("of")
    follower = follower_of(session_of(request))

    def load(cluster: Cluster) -> tuple[Sample, ...]:
        return find(cluster, follower, identity).history

    charts = charts_of(await in_cluster(request, load))
    if of is not None and of not in charts:
        raise HTTPException(404, f"of={of}: it must be one of {', '.join(charts)}")
    return json_answer(charts if of is None else charts[of])


def charts_of(history: Sequence[Sample]) -> dict[str, Any]:
    times = [it.at_ms / 1000 for it in history]

    def chart(label: str, values: list[Any]) -> dict[str, Any]:
        return {"times": times, "series": [{"label": label, "values": values}]}

    return {
        "rows": chart("rows", [it.rows_per_second for it in history]),
        "lag": chart("records", [it.lag for it in history]),
        "batch": chart("last batch", [it.batch_ms for it in history]),
        "watermark": chart(
            "behind",
            [
                None if it.watermark_delay_ms is None else it.watermark_delay_ms / 1000
                for it in history
            ],
        ),
        "state": chart("state", [it.state_bytes for it in history]),
    }


# Actions


def acting(action: Action, done: str) -> Any:
    async def handle(request: Request, form: Form) -> Response:
        identity = request.path_params["name"]
        session = session_of(request)

        def ask(cluster: Cluster) -> None:
            shown = find(cluster, follower_of(session), identity, is_action=True)
            refusing(lambda: send_command(cluster, shown, action, by=session.user or "console"))

        return await act(
            request,
            ask,
            done=done.format(identity),
            command=command(request, "pipelines", action, identity),
            back=link("pipelines", identity),
        )

    return handle


async def compare(request: Request, form: Form) -> Response:
    identity = request.path_params["name"]
    versions = form.need("first", "The first version"), form.need("second", "The second version")
    column = form.get("time") or None
    if versions[0] == versions[1]:
        raise Refused("choose two different versions")
    session = session_of(request)
    follower = follower_of(session)

    def ask(cluster: Cluster) -> None:
        shown = find(cluster, follower, identity, is_action=True)
        by = session.user or "console"
        refusing(
            lambda: send_command(
                cluster, shown, "diff", by=by, versions=versions, time_column=column
            )
        )

    pipeline = identity.partition("@")[0]
    options = ("--time", column) if column else ()
    return await act(
        request,
        ask,
        done=f"Versions {versions[0]} and {versions[1]} of {pipeline} are being compared.",
        command=command(request, "diff", pipeline, *versions, *options),
        back=link("pipelines", identity),
    )


async def forget(request: Request, form: Form) -> Response:
    identity = request.path_params["name"]
    follower = follower_of(session_of(request))

    def perform(cluster: Cluster) -> None:
        shown = find(cluster, follower, identity, is_action=True)
        refusing(lambda: forget_pipeline(cluster, shown))
        follower.update(cluster)

    return await act(
        request,
        perform,
        done=f"{identity} is removed from the list.",
        command=command(request, "pipelines", "forget", identity),
        back=link("pipelines"),
    )


def refusing(perform: Any) -> None:
    """Show in the form why the pipeline refuses."""
    try:
        perform()
    except ConfigError as error:
        raise Refused(str(error)) from error


ROUTES = [
    Route("/pipelines", show_all),
    Route("/pipelines/{name:name}", show_one),
    Route("/pipelines/{name:name}/history", show_history),
    post("/pipelines/{name:name}/stop", acting("stop", "{} stops after its running batch.")),
    post("/pipelines/{name:name}/restart", acting("restart", "{} restarts.")),
    post("/pipelines/{name:name}/diff", compare),
    post("/pipelines/{name:name}/forget", forget),
]
