"""`/groups`: consumer groups with their lag in records and in time; one group; its reset."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

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
from millstream.client.cluster import Cluster
from millstream.console import charts
from millstream.console.actions import Form, act, check_typed, command, post
from millstream.console.answers import page
from millstream.console.charts import Chart, ChartData
from millstream.console.group_resets import Resettable
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.pages.overview import range_of
from millstream.console.paths import link
from millstream.console.sampler import Sampler, sampler_of
from millstream.console.samples import Sample
from millstream.console.trends import Trend, lag_trend
from millstream.models import dataclass
from millstream.partitions import TopicPartition

LIVE_SECONDS = 3.0
UNREAD_READ_MAX = 1000  # oldest unread records that are read to sort a list by their age


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


RESETS = Resettable(
    "groups",
    describe_group,
    committed_offsets,
    commit_offsets,
    now_title="Committed",
    submit="Reset offsets",
    done=lambda group, count: f"Group {group}: {count} offsets are reset.",
)
ROUTES = [
    Route("/groups", show),
    Route("/groups/{name:name}", one),
    *RESETS.routes(),
    post("/groups/{name:name}/delete", delete),
]
