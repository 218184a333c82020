"""`/share-groups`: share groups; of one, records in flight, who holds them, delivery counts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.groups import GroupDescription, delete_group
from millstream.admin.lag import GroupLag
from millstream.admin.numbers import decimal
from millstream.admin.settings import Resource, settings_of
from millstream.admin.share_groups import (
    Delivery,
    ShareBatch,
    SharePartition,
    alter_start_offsets,
    describe_share_group,
    share_partitions,
    start_offsets,
    total,
)
from millstream.client.cluster import Cluster
from millstream.console import charts
from millstream.console.actions import Form, act, check_typed, command, post
from millstream.console.answers import page
from millstream.console.charts import Chart, ChartData
from millstream.console.group_resets import Resettable
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.pages.groups import LIVE_SECONDS, current_lags
from millstream.console.pages.overview import range_of
from millstream.console.paths import link
from millstream.console.sampler import Sampler, sampler_of
from millstream.console.trends import Trend, lag_trend
from millstream.errors import ApiError
from millstream.models import dataclass

DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
SHOWN_SETTINGS = (
    "share.delivery.count.limit",
    "share.record.lock.duration.ms",
    "share.retry.backoff.ms",
    "share.auto.offset.reset",
    "share.isolation.level",
    DEAD_LETTER_TOPIC,
)
STATES = {
    Delivery.ACQUIRED: ("held", "info", "locked by a member"),
    Delivery.DELAYED: ("delayed", "warn", "wait for their next attempt"),
    Delivery.AVAILABLE: ("released", "", "can be delivered again"),
    Delivery.ARCHIVING: ("dying", "bad", "their dead letters are being written"),
}
BATCHES_SHOWN = 50


@dataclass(frozen=True)
class ShareRow:
    """A share group in the list."""

    group: str
    state: str
    backlog: int | None
    partitions: int
    topics: tuple[str, ...]
    trend: Trend | None = None


@dataclass(frozen=True)
class ShareGroups:
    groups: Listed[ShareRow]
    waiting: int


@dataclass(frozen=True)
class BatchRow:
    """Records in flight, as the page shows them."""

    topic: str
    partition: int
    first: int
    last: int
    records: int
    state: str
    tone: str
    delivery_count: int
    client: str
    member: str | None
    remaining_ms: int | None


@dataclass(frozen=True)
class ShareGroupPage:
    """One share group."""

    group: str
    description: GroupDescription
    partitions: tuple[SharePartition, ...]
    batches: tuple[BatchRow, ...]
    has_more: bool
    backlog: int | None
    held: int | None
    delayed: int | None
    released: int | None
    dying: int | None
    is_live: bool
    is_known: bool
    deliveries: tuple[tuple[int, int], ...]
    delivery_limit: int | None
    holders: dict[str, int]
    settings: tuple[tuple[str, str], ...]
    dead_letter_topic: str
    trend: Trend | None
    delete_command: str
    config_command: str
    range: str
    charts: tuple[Chart, ...]
    history: Mapping[str, ChartData]


def load_list(cluster: Cluster, wanted: Wanted, sampler: Sampler) -> ShareGroups:
    rows = current_lags(cluster, sampler.current(cluster), is_share=True)
    found = listed(
        map(_row, rows),
        wanted,
        text=lambda row: " ".join((row.group, row.state, *row.topics)),
        keys={
            "group": lambda row: row.group,
            "state": lambda row: row.state,
            "backlog": lambda row: row.backlog,
        },
        default="group",
    )
    shown = [replace(row, trend=lag_trend(sampler, row.group)) for row in found.rows]
    return ShareGroups(replace(found, rows=shown), sum(1 for it in rows if it.lag))


def _row(it: GroupLag) -> ShareRow:
    return ShareRow(it.group, it.state, it.lag, it.partitions, it.topics)


async def show(request: Request) -> Response:
    wanted, sampler = Wanted.of(request.query_params), sampler_of(request)
    return await page(
        request,
        "share_groups.html",
        lambda cluster: load_list(cluster, wanted, sampler),
        live={"summary": LIVE_SECONDS, "rows": LIVE_SECONDS},
    )


# One group


def load_one(cluster: Cluster, group: str, request: Request, sampler: Sampler) -> ShareGroupPage:
    description = describe_share_group(cluster, group)
    partitions = share_partitions(cluster, group)
    deliveries: Counter[int] = Counter()
    holders: Counter[str] = Counter()
    for partition in partitions:
        deliveries.update(partition.deliveries)
        holders.update(partition.holders)
    settings = group_settings(cluster, group)
    clients = {it.member: it.client for it in description.members}
    batches = [_batch(it, batch, clients) for it in partitions for batch in it.batches]
    limit = settings.get("share.delivery.count.limit", "")
    chosen, plotted = range_of(request), charts.of_group(group)
    return ShareGroupPage(
        group,
        description,
        tuple(partitions),
        tuple(batches[:BATCHES_SHOWN]),
        len(batches) > BATCHES_SHOWN or any(it.has_more_batches for it in partitions),
        total(it.backlog for it in partitions),
        total(it.held for it in partitions),
        total(it.delayed for it in partitions),
        total(it.released for it in partitions),
        total(it.dying for it in partitions),
        any(it.is_live for it in partitions),
        any(it.counts is not None for it in partitions),
        tuple(sorted(deliveries.items())),
        decimal(limit),
        dict(holders),
        tuple((name, settings[name]) for name in SHOWN_SETTINGS if name in settings),
        settings.get(DEAD_LETTER_TOPIC, ""),
        lag_trend(sampler, group),
        command(request, "group", "delete", group),
        command(request, "group", "config", group),
        chosen,
        plotted,
        charts.draw(sampler.history, plotted, chosen, time.time()),
    )


def _batch(partition: SharePartition, batch: ShareBatch, clients: dict[str, str]) -> BatchRow:
    state, tone, _ = STATES[batch.state]
    return BatchRow(
        partition.topic,
        partition.partition,
        batch.first,
        batch.last,
        len(batch),
        state,
        tone,
        batch.delivery_count,
        clients.get(batch.member or "", ""),
        batch.member,
        batch.remaining_ms,
    )


def group_settings(cluster: Cluster, group: str) -> dict[str, str]:
    """The group's settings, if the user may know them."""
    try:
        found = settings_of(cluster, Resource.GROUP, group)
    except ApiError:
        return {}
    return {it.name: it.value or "" for it in found}


async def one(request: Request) -> Response:
    group, sampler = request.path_params["name"], sampler_of(request)
    return await page(
        request,
        "share_group.html",
        lambda cluster: load_one(cluster, group, request, sampler),
        live=dict.fromkeys(("facts", "members", "flight", "partitions"), LIVE_SECONDS),
        events=lambda model: model.history,
    )


async def delete(request: Request, form: Form) -> Response:
    group = request.path_params["name"]
    check_typed(form, group)
    return await act(
        request,
        delete_group,
        group,
        done=f"Share group {group} is deleted, with its state.",
        command=command(request, "group", "delete", group),
        back=link("share-groups"),
    )


RESETS = Resettable(
    "share-groups",
    describe_share_group,
    start_offsets,
    alter_start_offsets,
    now_title="Start",
    submit="Reset the start",
    done=lambda group, count: (
        f"Share group {group} starts at its new offsets in {count} partitions."
    ),
)
ROUTES = [
    Route("/share-groups", show),
    Route("/share-groups/{name:name}", one),
    *RESETS.routes(),
    post("/share-groups/{name:name}/delete", delete),
]
