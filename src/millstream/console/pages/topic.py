"""`/topics/NAME`: partitions, groups that read it, charts; its settings with their sources; adding
partitions, electing leaders, deleting it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.backlog import (
    WITHOUT_MEMBERS,
    Backlog,
    Extent,
    Positions,
    describe_backlog,
    policy_in,
)
from millstream.admin.cluster_state import NOT_PREFERRED, TopicState, topic_state
from millstream.admin.log_dirs import log_dirs
from millstream.admin.offsets import EARLIEST, LATEST, find_offsets
from millstream.admin.reassignments import Elected, elect_leaders
from millstream.admin.settings import Resource, Setting, alter_settings, settings_of
from millstream.admin.topics import add_partitions, delete_topic
from millstream.client.cluster import Cluster
from millstream.config.backlog import POLICY
from millstream.console import charts
from millstream.console.actions import Form, Refused, act, check_typed, command, post
from millstream.console.answers import page
from millstream.console.charts import Chart, ChartData
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.pages.overview import range_of
from millstream.console.paths import link
from millstream.console.sampler import Sampler, sampler_of
from millstream.console.samples import BYTES, RECORDS, Sample
from millstream.errors import ApiError
from millstream.models import dataclass

# Values of settings that are words: the form offers them.
CHOICES = {
    "cleanup.policy": ("delete", "compact", "compact,delete"),
    "compression.type": ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "millstream.backlog.policy": ("retain", "drop", "hold", "reject"),
}
BOOLEANS = ("true", "false")


@dataclass(frozen=True)
class PartitionRow:
    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    state: str | None
    start: int | None
    end: int | None
    bytes: int | None

    @property
    def records(self) -> int | None:
        return None if self.start is None or self.end is None else self.end - self.start


@dataclass(frozen=True)
class Reader:
    """A group that reads the topic."""

    group: str
    type: str
    state: str
    lag: int
    trend: list[float]


@dataclass(frozen=True)
class TopicBacklog:
    """What the backlog policy does now, the partitions that use most of their bound first."""

    backlog: Backlog
    applied: int  # partitions
    causes: list[str]  # the groups for which it applies


@dataclass(frozen=True)
class TopicPage:
    name: str
    id: str
    is_internal: bool
    is_dead_letter: bool
    state: str | None
    replicas: int
    records: int | None
    bytes: int | None
    records_per_second: float | None
    bytes_per_second: float | None
    partitions: Listed[PartitionRow]
    not_preferred: int
    readers: list[Reader]
    own_settings: list[Setting]
    problems: list[str]
    backlog: TopicBacklog | None = None
    policy: str | None = None  # of the backlog; None where there is none, as on Apache Kafka
    commands: dict[str, str] = field(default_factory=dict)
    range: str = charts.RANGE_DEFAULT
    charts: tuple[Chart, ...] = ()
    history: dict[str, ChartData] = field(default_factory=dict, repr=False)


def load(cluster: Cluster, sampler: Sampler, name: str, wanted: Wanted) -> TopicPage:
    topic = topic_state(cluster, name)
    problems: list[str] = []
    rows = partition_rows(cluster, topic, problems)
    sample = sampler.current(cluster)
    settings: list[Setting] = []
    backlog: TopicBacklog | None = None
    try:
        settings = settings_of(cluster, Resource.TOPIC, name)
        backlog = backlog_of(cluster, name, settings, rows, sample)
    except ApiError as error:
        problems.append(str(error))
    sizes = [it.bytes for it in rows if it.bytes is not None]
    return TopicPage(
        name=name,
        id=topic.id,
        is_internal=topic.is_internal or name.startswith("__"),
        is_dead_letter=sample.is_dead_letter_topic(name),
        state=topic.state,
        replicas=topic.replicas,
        records=sum(it.records or 0 for it in rows),
        bytes=sum(sizes) if sizes else None,
        records_per_second=sampler.rates.get((RECORDS, name)),
        bytes_per_second=sampler.rates.get((BYTES, name)),
        partitions=listed_partitions(rows, wanted),
        not_preferred=sum(it.state == NOT_PREFERRED for it in topic.partitions),
        readers=readers_of(sample, sampler, name),
        own_settings=[it for it in settings if it.is_own],
        problems=problems,
        backlog=backlog,
        policy=next((it.value for it in settings if it.name == POLICY), None),
    )


def partition_rows(cluster: Cluster, topic: TopicState, problems: list[str]) -> list[PartitionRow]:
    leaders = {(it.topic, it.index): it.leader for it in topic.partitions}
    starts = find_offsets(cluster, dict.fromkeys(leaders, EARLIEST), leaders=leaders).found
    ends = find_offsets(cluster, dict.fromkeys(leaders, LATEST), leaders=leaders).found
    brokers = sorted({it for it in leaders.values() if it >= 0})
    on_disk = log_dirs(cluster, brokers, leaders)
    problems += [it.problem for it in on_disk.directories if it.problem]
    sizes = {(it.partition, it.broker): it.bytes for it in on_disk.replicas}
    return [
        PartitionRow(
            it.index,
            it.leader,
            it.leader_epoch,
            it.replicas,
            it.in_sync,
            it.state,
            starts.get((it.topic, it.index)),
            ends.get((it.topic, it.index)),
            sizes.get((it.index, it.leader)),
        )
        for it in topic.partitions
    ]


def listed_partitions(rows: Sequence[PartitionRow], wanted: Wanted) -> Listed[PartitionRow]:
    return listed(
        rows,
        wanted,
        text=lambda row: f"{row.index} leader:{row.leader} {row.state or ''}",
        keys={
            "partition": lambda row: row.index,
            "leader": lambda row: row.leader,
            "start": lambda row: row.start,
            "end": lambda row: row.end,
            "records": lambda row: row.records,
            "size": lambda row: row.bytes,
        },
        default="partition",
    )


def readers_of(sample: Sample, sampler: Sampler, name: str) -> list[Reader]:
    found = []
    for group in sample.groups:
        if name in group.topics:
            lag = sum(
                max(0, sample.ends.get((topic, index), offset) - offset)
                for topic, index, offset in group.unread
                if topic == name
            )
            trend = sampler.trend("lag", group.group)
            found.append(Reader(group.group, group.type, group.state, lag, trend))
    return sorted(found, key=lambda it: (-it.lag, it.group))


def backlog_of(
    cluster: Cluster,
    name: str,
    settings: Sequence[Setting],
    rows: Sequence[PartitionRow],
    sample: Sample,
) -> TopicBacklog | None:
    """With the positions of groups that were sampled, a few seconds ago."""
    policy = policy_in({it.name: it.value for it in settings})
    if policy is None:
        return None
    counting = [it for it in sample.groups if name in it.topics and policy.counts(it.group)]
    positions = Positions(
        {
            group.group: {(topic, index): at for topic, index, at in group.unread if topic == name}
            for group in counting
        },
        frozenset(it.group for it in counting if it.state in WITHOUT_MEMBERS),
    )
    extents = [
        Extent(it.index, it.leader, it.start, it.end, it.bytes)
        for it in rows
        if it.start is not None and it.end is not None
    ]
    found = describe_backlog(cluster, name, policy, extents, positions)
    applied = [it for it in found.partitions if it.is_applied]
    found.partitions.sort(key=lambda it: (-(it.used or 0.0), it.partition))
    causes = sorted({it.group for it in applied if it.group is not None})
    return TopicBacklog(found, len(applied), causes)


async def show(request: Request) -> Response:
    name, wanted = request.path_params["name"], Wanted.of(request.query_params)
    sampler, chosen = sampler_of(request), range_of(request)

    def model(cluster: Cluster) -> TopicPage:
        found = load(cluster, sampler, name, wanted)
        plotted = charts.of_topic(name)
        return replace(
            found,
            commands={
                "delete": command(request, "topic", "delete", name, "--yes"),
                "describe": command(request, "topic", "describe", name),
            },
            range=chosen,
            charts=plotted,
            history=charts.draw(sampler.history, plotted, chosen, time.time()),
        )

    return await page(
        request,
        "topic.html",
        model,
        live={"now": 2.0, "rows": 2.0, "readers": 4.0, "backlog": 4.0},
        events=lambda it: it.history,
    )


# Settings


@dataclass(frozen=True)
class SettingsPage:
    name: str
    settings: Listed[Setting]
    shown: str  # "all", or "own": those that are set for the topic itself
    edited: Setting | None  # whose form is open
    choices: tuple[str, ...]  # its values, if there are only a few
    is_internal: bool = False


def load_settings(
    cluster: Cluster, name: str, wanted: Wanted, shown: str, edited: str
) -> SettingsPage:
    topic = topic_state(cluster, name)
    every = settings_of(cluster, Resource.TOPIC, name, documentation=True)
    rows = [it for it in every if shown == "all" or it.is_own]
    found = next((it for it in every if it.name == edited), None)
    page_of_rows = listed_settings(rows, replace(wanted, size=500))
    return SettingsPage(
        name,
        page_of_rows,
        shown,
        found,
        choices_of(found) if found is not None else (),
        topic.is_internal,
    )


def listed_settings(rows: Sequence[Setting], wanted: Wanted) -> Listed[Setting]:
    return listed(
        rows,
        wanted,
        text=lambda row: f"{row.name} {row.value} {row.source} {row.documentation}",
        keys={
            "name": lambda row: row.name,
            "value": lambda row: row.value,
            "source": lambda row: row.source,
        },
        default="name",
    )


def choices_of(setting: Setting) -> tuple[str, ...]:
    choices = BOOLEANS if setting.type == "boolean" else CHOICES.get(setting.name, ())
    return choices if setting.value in choices else ()


async def show_settings(request: Request) -> Response:
    name, query = request.path_params["name"], request.query_params
    wanted, edited = Wanted.of(query), query.get("edit", "")
    shown = "own" if query.get("show") == "own" else "all"
    return await page(
        request,
        "topic_settings.html",
        lambda cluster: load_settings(cluster, name, wanted, shown, edited),
    )


async def alter(request: Request, form: Form) -> Response:
    name, setting = request.path_params["name"], form.need("setting", "the name of the setting")
    back = link("topics", name, "settings")
    if form.get("reset"):
        return await _alter(
            request,
            {setting: None},
            done=f"{setting} of {name} is reset to the value that applies otherwise.",
            arguments=("--delete-config", setting),
            back=back,
        )
    value = form.text("value").strip()
    return await _alter(
        request,
        {setting: value},
        done=f"{setting} of {name} is now {value!r}.",
        arguments=("--config", f"{setting}={value}"),
        back=back,
    )


async def _alter(
    request: Request,
    changes: Mapping[str, str | None],
    *,
    done: str,
    arguments: tuple[str, ...],
    back: str,
) -> Response:
    name = request.path_params["name"]
    return await act(
        request,
        alter_settings,
        Resource.TOPIC,
        name,
        changes,
        done=done,
        command=command(request, "topic", "alter", name, *arguments),
        back=back,
    )


# Other actions


async def grow(request: Request, form: Form) -> Response:
    name = request.path_params["name"]
    count = form.integer("count", "the number of partitions")
    return await act(
        request,
        add_partitions,
        name,
        count,
        done=f"Topic {name} has {count} partitions.",
        command=command(request, "topic", "alter", name, "--partitions", str(count)),
        back=link("topics", name),
    )


async def elect(request: Request, form: Form) -> Response:
    name = request.path_params["name"]

    def perform(cluster: Cluster) -> Elected:
        topic = topic_state(cluster, name)
        return elect_leaders(cluster, {name: [it.index for it in topic.partitions]})

    return await act(
        request,
        perform,
        done=say_elected,
        command=command(request, "topic", "elect", name),
        back=link("topics", name),
    )


def say_elected(outcome: Elected) -> str:
    """The outcome of an election. Raises `Refused` if a partition has a problem."""
    if outcome.problems:
        named = [f"{topic}-{index}: {why}" for (topic, index), why in outcome.problems.items()]
        raise Refused(f"no leader was elected for {'; '.join(named[:5])}")
    if not outcome.partitions:
        return "Every partition already has the leader it should have."
    return f"The preferred replica leads {len(outcome.partitions)} more partitions."


async def delete(request: Request, form: Form) -> Response:
    name = request.path_params["name"]
    check_typed(form, name)
    return await act(
        request,
        delete_topic,
        name,
        form.topic_id(),
        done=f"Topic {name} is deleted.",
        command=command(request, "topic", "delete", name, "--yes"),
        back=link("topics"),
    )


ROUTES: list[Any] = [
    Route("/topics/{name:name}", show),
    Route("/topics/{name:name}/settings", show_settings),
    post("/topics/{name:name}/settings", alter),
    post("/topics/{name:name}/partitions", grow),
    post("/topics/{name:name}/elect", elect),
    post("/topics/{name:name}/delete", delete),
]
