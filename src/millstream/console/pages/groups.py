"""`/groups`: consumer groups with their lag in records and in time; one group; its reset."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin import reset
from millstream.admin.errors import InvalidArgument, OperationFailed
from millstream.admin.groups import (
    SHARE,
    GroupDescription,
    commit_offsets,
    committed_offsets,
    delete_group,
    describe_group,
    list_groups,
    member_counts,
)
from millstream.admin.lag import GroupLag, PartitionLag, group_lag, group_lags, timestamps_of
from millstream.admin.reset import Move, Target
from millstream.client.cluster import Cluster
from millstream.console import charts
from millstream.console.actions import Form, act, check_typed, command, post
from millstream.console.answers import page
from millstream.console.charts import Chart, ChartData
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.pages.overview import range_of
from millstream.console.paths import link
from millstream.console.sampler import Sampler, sampler_of
from millstream.console.samples import Sample
from millstream.console.trends import Trend, lag_trend
from millstream.console.zones import in_full
from millstream.models import dataclass
from millstream.partitions import TopicPartition

LIVE_SECONDS = 3.0
UNREAD_READ_MAX = 1000  # oldest unread records that are read to sort a list by their age
TARGETS = (
    ("earliest", "the beginning"),
    ("latest", "the end"),
    ("datetime", "a point in time"),
    ("duration", "a time ago"),
    ("offset", "an offset"),
    ("shift", "a number of records from here"),
    ("current", "where it is, moved into range"),
)


@dataclass(frozen=True)
class GroupRow:
    """A group in the list."""

    group: str
    type: str
    state: str
    protocol: str
    coordinator: int
    lag: int | None
    lost: int
    partitions: int
    topics: tuple[str, ...]
    members: int | None = None
    behind_ms: int | None = None
    trend: Trend | None = None


@dataclass(frozen=True)
class Groups:
    groups: Listed[GroupRow]
    behind: int  # groups with lag
    lost: int  # groups that have lost records


@dataclass(frozen=True)
class GroupPage:
    """One group."""

    group: str
    description: GroupDescription
    partitions: Listed[PartitionLag]
    lag: int | None
    lost: int
    behind_ms: int | None
    warnings: tuple[str, ...]
    trend: Trend | None
    reset_path: str
    delete_command: str
    range: str
    charts: tuple[Chart, ...]
    history: Mapping[str, ChartData]


@dataclass(frozen=True)
class ResetPage:
    """A reset: what is asked for, and what it would do."""

    group: str
    members: int
    topics: tuple[str, ...]
    target: str
    value: str
    scope: tuple[str, ...]
    moves: tuple[Move, ...] = ()
    reread: int = 0
    skipped: int = 0
    problem: str = ""
    command: str = ""
    targets: tuple[tuple[str, str], ...] = field(default=TARGETS)
    path: str = ""  # of the group's page
    action: str = ""
    now_title: str = "Committed"
    submit: str = "Reset offsets"


# The list


def current_lags(cluster: Cluster, sample: Sample, *, is_share: bool) -> list[GroupLag]:
    """The groups that there are now, with their lag at the time of the sample: of a large cluster,
    all offsets are too much for one page. New groups are asked for."""
    listed = [it for it in list_groups(cluster) if (it.type == SHARE) is is_share]
    sampled = {it.group: it for it in sample.groups}
    new = [it for it in listed if it.group not in sampled]
    known = sampled | {it.group: it for it in group_lags(cluster, new)}
    return [replace(known[it.group], **asdict(it)) for it in listed]


def load_list(cluster: Cluster, wanted: Wanted, sampler: Sampler) -> Groups:
    sample = sampler.current(cluster)
    lags = current_lags(cluster, sample, is_share=False)
    leaders = sample.state.leaders
    rows = {it.group: _row(it) for it in lags}
    if wanted.sort.removeprefix("-") == "behind":
        rows |= _with_ages(cluster, lags, rows, leaders)
    found = listed(
        rows.values(),
        wanted,
        text=lambda row: " ".join((row.group, row.state, row.type, row.protocol, *row.topics)),
        keys={
            "group": lambda row: row.group,
            "state": lambda row: row.state,
            "type": lambda row: row.type,
            "lag": lambda row: row.lag,
            "behind": lambda row: row.behind_ms,
            "lost": lambda row: row.lost,
        },
        default="group",
    )
    visible = {row.group for row in found.rows}
    shown = {row.group: row for row in found.rows}
    if wanted.sort.removeprefix("-") != "behind":
        shown |= _with_ages(cluster, [it for it in lags if it.group in visible], shown, leaders)
    members = member_counts(cluster, [it for it in lags if it.group in visible])
    enriched = [
        replace(shown[name], members=members.get(name), trend=lag_trend(sampler, name))
        for name in shown
    ]
    behind = sum(1 for it in lags if it.lag)
    return Groups(replace(found, rows=enriched), behind, sum(1 for it in lags if it.lost))


def _row(it: GroupLag) -> GroupRow:
    return GroupRow(
        it.group,
        it.type,
        it.state,
        it.protocol,
        it.coordinator,
        it.lag,
        it.lost,
        it.partitions,
        it.topics,
        behind_ms=0 if it.lag == 0 else None,
    )


def _with_ages(
    cluster: Cluster,
    lags: Sequence[GroupLag],
    rows: dict[str, GroupRow],
    leaders: Mapping[TopicPartition, int],
) -> dict[str, GroupRow]:
    """The rows with the age of the oldest unread record of each group."""
    spots = list(dict.fromkeys(spot for it in lags for spot in it.unread))
    oldest = timestamps_of(cluster, spots[:UNREAD_READ_MAX], leaders=leaders)
    now_ms = round(time.time() * 1000)
    aged = {}
    for it in lags:
        times = [oldest[spot] for spot in it.unread if spot in oldest]
        if times:
            aged[it.group] = replace(rows[it.group], behind_ms=max(0, now_ms - min(times)))
    return aged


async def show(request: Request) -> Response:
    wanted, sampler = Wanted.of(request.query_params), sampler_of(request)
    return await page(
        request,
        "groups.html",
        lambda cluster: load_list(cluster, wanted, sampler),
        live={"summary": LIVE_SECONDS, "rows": LIVE_SECONDS},
    )


# One group


def load_one(
    cluster: Cluster, group: str, wanted: Wanted, request: Request, sampler: Sampler
) -> GroupPage:
    chosen = range_of(request)
    description = describe_group(cluster, group)
    lags = group_lag(cluster, description)
    rows = listed(
        lags,
        wanted,
        text=lambda row: f"{row.topic} {row.topic}[{row.partition}] {row.member}",
        keys={
            "partition": lambda row: (row.topic, row.partition),
            "lag": lambda row: row.lag,
            "behind": lambda row: row.behind_ms,
            "committed": lambda row: row.committed,
            "member": lambda row: row.member,
        },
        default="partition",
    )
    known = [it.lag for it in lags if it.lag is not None]
    ages = [it.behind_ms for it in lags if it.behind_ms is not None]
    return GroupPage(
        group,
        description,
        rows,
        sum(known) if known else None,
        sum(it.lost for it in lags),
        max(ages, default=0 if known else None),
        tuple(f"{it.topic}[{it.partition}]: {it.warning}" for it in lags if it.warning),
        lag_trend(sampler, group),
        link("groups", group, "reset"),
        command(request, "group", "delete", group),
        chosen,
        charts.of_group(group),
        charts.draw(sampler.history, charts.of_group(group), chosen, time.time()),
    )


async def one(request: Request) -> Response:
    group, wanted = request.path_params["name"], Wanted.of(request.query_params)
    sampler = sampler_of(request)
    return await page(
        request,
        "group.html",
        lambda cluster: load_one(cluster, group, wanted, request, sampler),
        live={"facts": LIVE_SECONDS, "members": LIVE_SECONDS, "partitions": LIVE_SECONDS},
        events=lambda model: model.history,
    )


async def delete(request: Request, form: Form) -> Response:
    group = request.path_params["name"]
    check_typed(form, group)
    return await act(
        request,
        delete_group,
        group,
        done=f"Group {group} is deleted, with its offsets.",
        command=command(request, "group", "delete", group),
        back=link("groups"),
    )


# Reset


def now() -> datetime:
    """With the time zone of the console; points in time have one (`value_of`)."""
    return datetime.now(UTC).astimezone()


def value_of(kind: str, fields: Mapping[str, str] | Form) -> str:
    """What is typed beside the target; a point in time with its zone."""
    value = (fields.get("value") or "").strip()
    if kind != "datetime" or not value:
        return value
    with suppress(InvalidArgument):  # said where it is used
        return in_full(value, fields.get("zone") or "", now())
    return value


def parse_target(kind: str, value: str) -> Target:
    """What the form asks for. Raises `InvalidArgument`."""
    if kind == "earliest":
        return Target(earliest=True)
    if kind == "latest":
        return Target(latest=True)
    if kind == "current":
        return Target(current=True)
    if not value:
        raise InvalidArgument("say where to: the value is missing")
    if kind == "datetime":
        return Target(moment=value)
    if kind == "duration":
        return Target(span_ago=value)
    if kind in ("offset", "shift"):
        try:
            number = int(value)
        except ValueError:
            raise InvalidArgument(f"{value!r} is not a whole number") from None
        if kind == "shift":
            return Target(shift=number)
        if number < 0:
            raise InvalidArgument("an offset is not negative")
        return Target(offset=number)
    raise InvalidArgument(f"unknown target {kind!r}")


def reset_arguments(group: str, scope: Sequence[str], target: Target) -> list[str]:
    """The arguments of the same reset on the command line."""
    where = [part for it in scope for part in ("--topic", it)] if scope else ["--all-topics"]
    return ["group", "reset", group, *where, *target.options(), "--execute"]


def load_reset(
    cluster: Cluster, group: str, kind: str, value: str, scope: Sequence[str], request: Request
) -> ResetPage:
    description = describe_group(cluster, group)
    committed = committed_offsets(cluster, group)
    assigned = {topic for topic, _ in description.readers}
    topics = tuple(sorted({topic for topic, _ in committed} | assigned))
    empty = ResetPage(
        group,
        len(description.members),
        topics,
        kind,
        value,
        tuple(scope),
        path=link("groups", group),
        action=link("groups", group, "reset"),
    )
    if not kind:
        return empty
    return preview(cluster, empty, committed, request)


def preview(
    cluster: Cluster, asked: ResetPage, committed: dict[tuple[str, int], int], request: Request
) -> ResetPage:
    """With what the reset would do, or why it cannot be done."""
    try:
        target = parse_target(asked.target, asked.value)
        places = reset.parse_scope(cluster, asked.scope, not asked.scope, committed)
        moves = tuple(reset.plan(cluster, committed, places, target, now()))
    except OperationFailed as error:
        return replace(asked, problem=str(error))
    differences = [it.difference for it in moves if it.difference is not None]
    return replace(
        asked,
        moves=moves,
        reread=-sum(it for it in differences if it < 0),
        skipped=sum(it for it in differences if it > 0),
        command=command(request, *reset_arguments(asked.group, asked.scope, target)),
    )


async def ask_reset(request: Request) -> Response:
    group, query = request.path_params["name"], request.query_params
    kind = query.get("target", "")
    value = value_of(kind, query)
    scope = [it for it in query.getlist("topic") if it]
    return await page(
        request,
        "group_reset.html",
        lambda cluster: load_reset(cluster, group, kind, value, scope, request),
    )


def do_reset(cluster: Cluster, group: str, target: Target, scope: Sequence[str]) -> int:
    committed = committed_offsets(cluster, group)
    places = reset.parse_scope(cluster, scope, not scope, committed)
    moves = reset.plan(cluster, committed, places, target, now())
    commit_offsets(cluster, group, {(it.topic, it.partition): it.target for it in moves})
    return len(moves)


async def apply_reset(request: Request, form: Form) -> Response:
    group = request.path_params["name"]
    kind = form.get("target")
    target = parse_target(kind, value_of(kind, form))
    scope = [it for it in form.all("topic") if it]
    return await act(
        request,
        do_reset,
        group,
        target,
        scope,
        done=lambda count: f"Group {group}: {count} offsets are reset.",
        command=command(request, *reset_arguments(group, scope, target)),
        back=link("groups", group),
    )


ROUTES = [
    Route("/groups", show),
    Route("/groups/{name:name}", one),
    Route("/groups/{name:name}/reset", ask_reset),
    post("/groups/{name:name}/reset", apply_reset),
    post("/groups/{name:name}/delete", delete),
]
