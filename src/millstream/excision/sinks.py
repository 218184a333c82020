"""Removes what a sink of `millstream connect` has of excised records: tables, indexes, caches.

    rebuild            the target is filled again from the log, which no longer has these records,
                       beside the old one, and takes its place in one step. Right for every selector
    rows of the key    where the log has lost older records to retention, a rebuild would lose rows:
                       the rows of the key are deleted as by a tombstone, at the position where the
                       target is; records of the key that came later are applied again

Either way the position in the target stays right, so nothing is applied twice or left out, and what
deleted rows leave in files is removed (`Sink.purge`). All of it can be repeated.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from millstream.admin.offsets import end_offsets, start_offsets
from millstream.admin.settings import Resource, settings_of
from millstream.client.cluster import Cluster
from millstream.connect.sinks.changes import Changes, decode_changes
from millstream.connect.sinks.config import (
    SinkConfig,
    TopicConfig,
    load_config,
    without_password,
)
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.positions import Place, Position, PositionMoved, Step
from millstream.connect.sinks.runner import SinkRunner
from millstream.connect.sinks.sink import Part, Run, Sink, Write
from millstream.errors import ConfigError, MillstreamError
from millstream.excision.documents import KEY, DerivedPlan, Job, Selector
from millstream.excision.looking import REBUILD, ROWS, later_records, row_key
from millstream.excision.selection import read_all

ATTEMPTS = 20  # while the sink itself goes on


def plan_sink(
    cluster: Cluster, file: Path, topics: Sequence[str], selector: Selector
) -> DerivedPlan:
    """Raises `ConfigError` if what it has of the records cannot be removed."""
    config = load_config(file)
    concerned = [it for it in config.topics if it.topic in topics]
    if not concerned:
        raise ConfigError(f"{file}: sink {config.name} reads none of {', '.join(topics)}")
    sink = open_sink(config)
    return DerivedPlan(
        kind="sink",
        declared=str(file.resolve()),
        host=platform.node(),
        directory=str(Path.cwd()),
        name=config.name,
        how=_choose(cluster, sink, config, concerned, selector),
        tables=tuple(it.table for it in concerned),
        store=without_password(config.to),
    )


def _choose(
    cluster: Cluster,
    sink: Sink,
    config: SinkConfig,
    concerned: Sequence[TopicConfig],
    selector: Selector,
) -> str:
    lost = [it.topic for it in config.topics if lost_records(cluster, it.topic)]
    if sink.may_rebuild and not lost:
        return REBUILD
    why = (
        f"{', '.join(lost)} has lost older records to retention, so a rebuild would lose rows"
        if lost
        else "it cannot be rebuilt beside itself"
    )
    if selector.kind != KEY or not sink.may_write_again:
        raise ConfigError(
            f"sink {config.name}: {why}, and rows can be deleted one by one only for --key, in "
            "SQLite, FTS5, PostgreSQL, DuckDB and Redis. Leave the sink out, and delete its rows "
            "yourself"
        )
    for topic in concerned:
        if row_key(topic, selector) is None:
            raise ConfigError(
                f"sink {config.name}: {why}, and the key of the records does not tell the "
                f"{', '.join(topic.key)} of a row of {topic.table}. Leave the sink out, and "
                "delete its rows yourself"
            )
        if _has_other_keys(cluster, config, topic, selector):
            raise ConfigError(
                f"sink {config.name}: {why}, and rows of {topic.table} have the "
                f"{', '.join(topic.key)} of the value, which is not the key of the record. Leave "
                "the sink out, and delete its rows yourself"
            )
    return ROWS


def _has_other_keys(
    cluster: Cluster, config: SinkConfig, topic: TopicConfig, selector: Selector
) -> bool:
    """Whether records of the key are about rows of another key: a tombstone would miss these, and
    delete others."""
    parse = SinkRunner(config).parse
    wanted = row_key(topic, selector)
    partitions = cluster.retrying(lambda: cluster.topic(topic.topic)).partitions
    places = [(topic.topic, index) for index in range(len(partitions))]
    starts, ends = start_offsets(cluster, places), end_offsets(cluster, places)
    for place in places:
        read = read_all(cluster, *place, starts[place], ends[place], selector.text)
        pairs = [(it.key, it.value) for it, _ in read if it is not None and it.key == selector.text]
        changes = decode_changes(pairs, topic.key, topic.format, parse=parse, parse_key=parse)
        if any(it.key != wanted for it in changes.changes):
            return True
    return False


def lost_records(cluster: Cluster, topic: str) -> bool:
    """Whether retention has deleted records, other than superseded ones of a compacted topic."""
    settings = {it.name: it.value for it in settings_of(cluster, Resource.TOPIC, topic)}
    if settings.get("cleanup.policy") == "compact":
        return False
    count = len(cluster.retrying(lambda: cluster.topic(topic)).partitions)
    places = [(topic, index) for index in range(count)]
    return any(start_offsets(cluster, places).values())


def excise_sink(plan: DerivedPlan, job: Job, selector: Selector | None) -> list[str]:
    """What it may still have of the records, which are no longer in the log. Raises
    `MillstreamError`; then it can be repeated."""
    config = load_config(Path(plan.declared))
    if plan.how == REBUILD:
        SinkRunner(config).rebuild()
    elif selector is None:
        raise MillstreamError(
            f"rows of sink {plan.name} are deleted by their key, which is not written down: "
            f"millstream excise resume {job.id} --key KEY"
        )
    else:
        _delete_rows(config, plan, job, selector)
    with open_sink(config) as sink:
        sink.open()
        return sink.purge()


def _delete_rows(config: SinkConfig, plan: DerivedPlan, job: Job, selector: Selector) -> None:
    with (
        open_sink(config) as sink,
        Cluster(config.broker, security=dict(config.kafka) or None) as cluster,
    ):
        for topic in config.topics:
            if topic.table in plan.tables:
                _delete_rows_of(sink, cluster, config, topic, job, selector)


def _delete_rows_of(
    sink: Sink,
    cluster: Cluster,
    config: SinkConfig,
    topic: TopicConfig,
    job: Job,
    selector: Selector,
) -> None:
    parse = SinkRunner(config).parse
    for _ in range(ATTEMPTS):
        sink.open()
        positions = _positions_of(sink, topic.topic)
        if not positions:
            return  # it has nothing yet
        later = later_records(cluster, job, topic.topic, positions)
        again = [it for it in later if it[0] == selector.text]
        records = [(selector.text, None), *again]
        changes = decode_changes(records, topic.key, topic.format, parse=parse, parse_key=parse)
        steps = tuple(Step(place, it, it) for place, it in positions.items())
        try:
            sink.apply(Write(steps, {topic.topic: _part(sink, topic, changes, len(records))}))
            return
        except PositionMoved:
            continue  # the sink has applied more meanwhile
    raise MillstreamError(
        f"sink {config.name} is written to all the time, so rows cannot be deleted: stop it for "
        "a moment"
    )


def _part(sink: Sink, topic: TopicConfig, changes: Changes, records: int) -> Part:
    (target,) = [it for it in sink.targets if it.topic == topic.topic]
    rows = None
    if target.columns is not None:
        from millstream.connect.sinks.columns import to_arrow

        rows = to_arrow(changes, target.columns, topic.key)
    return Part(changes, rows, [Run(0, range(records))])


def _positions_of(sink: Sink, topic: str) -> dict[Place, Position]:
    return {place: it for place, it in sink.positions().items() if place.topic == topic}
