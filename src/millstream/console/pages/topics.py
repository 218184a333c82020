"""`/topics`: all topics with their sizes, rates and lag; creating one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.admin.cluster_state import TopicState, cluster_state
from millstream.admin.topics import create_topic
from millstream.client.cluster import Cluster
from millstream.console.actions import Form, Refused, act, command, post
from millstream.console.answers import page
from millstream.console.lists import Listed, Wanted, listed
from millstream.console.paths import link
from millstream.console.sampler import Sampler, sampler_of
from millstream.console.samples import BYTES, CLEANUP, RECORDS, Sample
from millstream.models import dataclass

ALL, ATTENTION, DEAD_LETTERS, INTERNAL = "all", "attention", "dead-letters", "internal"
FILTERS = (ALL, ATTENTION, DEAD_LETTERS, INTERNAL)


@dataclass(frozen=True)
class TopicRow:
    name: str
    partitions: int
    replicas: int
    records: int | None  # None: not sampled yet, or the user may not know
    bytes: int | None
    records_per_second: float | None
    bytes_per_second: float | None
    lag: int | None  # of all groups; None if none reads it
    groups: int
    state: str | None  # the worst of its partitions'
    cleanup: str
    retention_ms: int | None
    is_internal: bool
    is_dead_letter: bool


@dataclass(frozen=True)
class Topics:
    topics: Listed[TopicRow]
    shown: str  # one of FILTERS
    counts: dict[str, int]
    is_empty: bool  # the cluster has no topics but internal ones


def load(cluster: Cluster, sampler: Sampler, wanted: Wanted, shown: str) -> Topics:
    sample = sampler.current(cluster)
    state = cluster_state(cluster)  # a topic that was just created is there, though not sampled
    rows = topic_rows(state.topics, sample, sampler.rates)
    kinds = {kind: [row for row in rows if is_shown(row, kind)] for kind in FILTERS}
    page_of_rows = listed(
        kinds[shown],
        wanted,
        text=lambda row: row.name,
        keys={
            "name": lambda row: row.name.casefold(),
            "partitions": lambda row: row.partitions,
            "replicas": lambda row: row.replicas,
            "records": lambda row: row.records,
            "size": lambda row: row.bytes,
            "rate": lambda row: row.records_per_second,
            "lag": lambda row: row.lag,
        },
        default="name",
    )
    counts = {kind: len(found) for kind, found in kinds.items()}
    return Topics(page_of_rows, shown, counts, is_empty=not kinds[ALL])


def topic_rows(
    topics: Mapping[str, TopicState], sample: Sample, rates: Mapping[tuple[str, str], float]
) -> list[TopicRow]:
    lags = lag_by_topic(sample)
    readers = Counter(topic for group in sample.groups for topic in group.topics)
    rows = []
    for name, topic in topics.items():
        sampled = sample.state.topics.get(name)
        is_same = sampled is not None and sampled.id == topic.id
        rows.append(
            TopicRow(
                name=name,
                partitions=len(topic.partitions),
                replicas=topic.replicas,
                records=sample.records_of(name) if is_same else None,
                bytes=sample.bytes_of(name) if is_same else None,
                records_per_second=rates.get((RECORDS, name)) if is_same else None,
                bytes_per_second=rates.get((BYTES, name)) if is_same else None,
                lag=lags.get(name, 0) if readers[name] else None,
                groups=readers[name],
                state=topic.state,
                cleanup=sample.settings.get(name, {}).get(CLEANUP, ""),
                retention_ms=sample.retention_ms(name),
                is_internal=topic.is_internal or name.startswith("__"),
                is_dead_letter=sample.is_dead_letter_topic(name),
            )
        )
    return rows


def lag_by_topic(sample: Sample) -> Counter[str]:
    """Unread records of all groups."""
    found: Counter[str] = Counter()
    for group in sample.groups:
        for topic, index, offset in group.unread:
            found[topic] += max(0, sample.ends.get((topic, index), offset) - offset)
    return found


def is_shown(row: TopicRow, kind: str) -> bool:
    if kind == INTERNAL:
        return row.is_internal
    if kind == ATTENTION:
        return row.state is not None
    if kind == DEAD_LETTERS:
        return row.is_dead_letter
    return not row.is_internal


async def show(request: Request) -> Response:
    wanted, sampler = Wanted.of(request.query_params), sampler_of(request)
    kind = request.query_params.get("show", ALL)
    shown = kind if kind in FILTERS else ALL
    return await page(
        request,
        "topics.html",
        lambda cluster: load(cluster, sampler, wanted, shown),
        live={"rows": 3.0},
    )


def parse_settings(text: str) -> dict[str, str]:
    """Lines of `name=value`. Raises `Refused`."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise Refused(f"setting {line.strip()!r}: write it as name=value, one on each line")
        found[name.strip()] = value.strip()
    return found


def at_least_one(form: Form, name: str, what: str) -> int | None:
    """A number of 1 and more; None if nothing was typed."""
    if not form.get(name):
        return None
    count = form.integer(name, what)
    if count < 1:
        raise Refused(f"{what} must be at least 1, not {count}")
    return count


async def create(request: Request, form: Form) -> Response:
    name = form.need("name", "the name")
    partitions = at_least_one(form, "partitions", "the number of partitions")
    replicas = at_least_one(form, "replication_factor", "the replication factor")
    settings = parse_settings(form.text("settings"))
    arguments = ["topic", "create", name]
    if partitions is not None:
        arguments += ["--partitions", str(partitions)]
    if replicas is not None:
        arguments += ["--replication-factor", str(replicas)]
    for key, value in settings.items():
        arguments += ["--config", f"{key}={value}"]

    def perform(cluster: Cluster) -> None:
        create_topic(
            cluster,
            name,
            partitions=partitions,
            replication_factor=replicas,
            settings=settings,
        )

    return await act(
        request,
        perform,
        done=f"Topic {name} is created.",
        command=command(request, *arguments),
        back=link("topics", name),
    )


ROUTES = [Route("/topics", show), post("/topics", create)]
