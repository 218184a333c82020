"""`/`: the cluster at a glance, live: brokers, rates, disk, what needs attention, busiest topics,
groups that lag, unread records that retention threatens, dead letters. `/history`: its charts."""

from __future__ import annotations

import time
from dataclasses import field

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.cluster_state import (
    NOT_PREFERRED,
    OFFLINE,
    UNDER_REPLICATED,
    BrokerState,
    PartitionState,
)
from millstream.admin.log_dirs import DirectoryState
from millstream.client.cluster import Cluster
from millstream.console import charts
from millstream.console.answers import json_answer, page
from millstream.console.charts import RANGE_DEFAULT, RANGES, Chart, ChartData
from millstream.console.sampler import Sampler, sampler_of
from millstream.console.samples import BYTES, RECORDS, WHOLE, AtRisk, Sample
from millstream.models import dataclass

SHOWN_MAX = 6
DISK_WARN, DISK_BAD = 0.8, 0.92  # of a volume in use


@dataclass(frozen=True)
class BusyTopic:
    name: str
    records_per_second: float
    bytes_per_second: float | None


@dataclass(frozen=True)
class LaggingGroup:
    group: str
    type: str
    state: str
    lag: int
    trend: list[float]  # of the last minutes, the oldest first


@dataclass(frozen=True)
class GroupAtRisk:
    """A group that retention takes unread records from, soon or already."""

    group: str
    type: str
    topics: tuple[str, ...]
    unread: int  # in the partitions at risk
    expires_in_ms: int | None  # until the first of them may be deleted
    lost: int  # deleted unread


@dataclass(frozen=True)
class LetterTopic:
    name: str
    letters: int


@dataclass(frozen=True)
class Overview:
    cluster_id: str
    brokers: tuple[BrokerState, ...]
    brokers_gone: list[int]  # that have replicas and are not live
    topics: int
    partitions: int
    offline: int
    under_replicated: int
    not_preferred: int
    records_per_second: float | None
    bytes_per_second: float | None
    total_bytes: int | None
    directories: tuple[DirectoryState, ...]
    groups: int
    lag: int | None
    lagging: list[LaggingGroup]
    at_risk: list[GroupAtRisk]
    at_risk_count: int
    dead_letters: int
    letter_topics: list[LetterTopic]
    busy: list[BusyTopic]
    attention: list[PartitionState]
    problems: tuple[str, ...]
    sampled_ms: int
    range: str = RANGE_DEFAULT
    charts: tuple[Chart, ...] = ()
    history: dict[str, ChartData] = field(default_factory=dict, repr=False)


def load(cluster: Cluster, sampler: Sampler, chosen: str) -> Overview:
    sample = sampler.current(cluster)
    state, counts, rates = sample.state, sample.state.counts, sampler.rates
    plotted = charts.of_cluster()
    risks = groups_at_risk(sample, round(time.time() * 1000))
    return Overview(
        cluster_id=state.cluster_id,
        brokers=state.brokers,
        brokers_gone=state.gone,
        topics=len(state.topics),
        partitions=state.partition_count,
        offline=counts[OFFLINE],
        under_replicated=counts[UNDER_REPLICATED],
        not_preferred=counts[NOT_PREFERRED],
        records_per_second=rates.get((RECORDS, WHOLE)),
        bytes_per_second=rates.get((BYTES, WHOLE)),
        total_bytes=sample.total_bytes,
        directories=sample.directories,
        groups=len(sample.groups),
        lag=sample.lag,
        lagging=lagging_groups(sample, sampler),
        at_risk=risks[:SHOWN_MAX],
        at_risk_count=len(risks),
        dead_letters=sample.dead_letters,
        letter_topics=letter_topics(sample),
        busy=busy_topics(sampler),
        attention=sorted(state.attention, key=lambda it: it.state != OFFLINE)[:SHOWN_MAX],
        problems=sample.problems,
        sampled_ms=sample.time_ms,
        range=chosen,
        charts=plotted,
        history=charts.draw(sampler.history, plotted, chosen, time.time()),
    )


def lagging_groups(sample: Sample, sampler: Sampler) -> list[LaggingGroup]:
    behind = sorted((it for it in sample.groups if it.lag), key=lambda it: -(it.lag or 0))
    return [
        LaggingGroup(it.group, it.type, it.state, it.lag or 0, sampler.trend("lag", it.group))
        for it in behind[:SHOWN_MAX]
    ]


def groups_at_risk(sample: Sample, now_ms: int) -> list[GroupAtRisk]:
    """The most urgent first."""
    threatened: dict[str, list[AtRisk]] = {}
    for it in sample.at_risk:
        threatened.setdefault(it.group, []).append(it)
    found = []
    for group in sample.groups:
        mine = threatened.get(group.group, [])
        if not mine and not group.lost:
            continue
        times = [it.expires_ms for it in mine if it.expires_ms is not None]
        found.append(
            GroupAtRisk(
                group.group,
                group.type,
                tuple(sorted({it.topic for it in mine})),
                sum(it.unread for it in mine),
                min(times) - now_ms if times else None,
                group.lost,
            )
        )
    return sorted(found, key=lambda it: (it.expires_in_ms is None, it.expires_in_ms or 0))


def letter_topics(sample: Sample) -> list[LetterTopic]:
    found = [LetterTopic(it, sample.records_of(it) or 0) for it in sample.dead_letter_topics]
    return sorted(found, key=lambda it: (-it.letters, it.name))[:SHOWN_MAX]


def busy_topics(sampler: Sampler) -> list[BusyTopic]:
    rates = sampler.rates
    found = [
        BusyTopic(name, value, rates.get((BYTES, name)))
        for (kind, name), value in rates.items()
        if kind == RECORDS and name != WHOLE and value > 0
    ]
    return sorted(found, key=lambda it: (-it.records_per_second, it.name))[:SHOWN_MAX]


def range_of(request: Request) -> str:
    """The range of charts that a request asks for."""
    chosen = request.query_params.get("range", RANGE_DEFAULT)
    return chosen if chosen in RANGES else RANGE_DEFAULT


async def show(request: Request) -> Response:
    chosen, sampler = range_of(request), sampler_of(request)
    return await page(
        request,
        "overview.html",
        lambda cluster: load(cluster, sampler, chosen),
        live={"now": 2.0, "more": 4.0},
        events=lambda model: model.history,
    )


async def history(request: Request) -> Response:
    """The data of one chart: `/history?chart=records&topic=orders&range=6h`."""
    parameters = request.query_params
    if "topic" in parameters:
        drawn = charts.of_topic(parameters["topic"])
    elif "group" in parameters:
        drawn = charts.of_group(parameters["group"])
    else:
        drawn = charts.of_cluster()
    sampled = sampler_of(request).history
    data = charts.draw(sampled, drawn, range_of(request), time.time())
    chosen = parameters.get("chart", "")
    if chosen not in data:
        raise HTTPException(404, f"there is no chart {chosen!r}; there are {', '.join(data)}")
    return json_answer(data[chosen])


ROUTES = [Route("/", show), Route("/history", history)]
