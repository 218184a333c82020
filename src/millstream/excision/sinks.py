"""Removes what a sink of `millstream connect` has of excised records: tables, indexes, caches.

    rebuild            the target is filled again from the log, which has these records no more,
                       beside the old one, and takes its place in one step. Right for every selector
    rows of the key    where the log has lost older records to retention, a rebuild would lose rows:
                       the rows of the key are deleted as by a tombstone, at the position where the
                       target is; records of the key that came later are applied again

Either way the position in the target stays right, so nothing is applied twice or left out, and what
deleted rows leave in files is removed (`Sink.purge`). All of it can be repeated.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from millstream.admin.offsets import start_offsets
from millstream.admin.settings import Resource, settings_of
from millstream.client.cluster import Cluster
from millstream.connect.sinks.changes import Changes, Key, decode_changes
from millstream.connect.sinks.config import (
    SinkConfig,
    TopicConfig,
    load_config,
    without_password,
)
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.positions import Place, Position, PositionMoved, Step
from millstream.connect.sinks.reading import fetch, pairs
from millstream.connect.sinks.runner import SinkRunner
from millstream.connect.sinks.sink import Part, Run, Sink, Write
from millstream.errors import ConfigError, MillstreamError
from millstream.excision.documents import KEY, DerivedPlan, Job, Selector

REBUILD, ROWS = "rebuild", "rows of the key"
ATTEMPTS = 20  # while the sink itself goes on

Rows = Mapping[str, int]  # by table


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
    return ROWS


def lost_records(cluster: Cluster, topic: str) -> bool:
    """Whether retention has deleted records, other than superseded ones of a compacted topic."""
    settings = {it.name: it.value for it in settings_of(cluster, Resource.TOPIC, topic)}
    if settings.get("cleanup.policy") == "compact":
        return False
    count = len(cluster.retrying(lambda: cluster.topic(topic)).partitions)
    places = [(topic, index) for index in range(count)]
    return any(start_offsets(cluster, places).values())


def row_key(topic: TopicConfig, selector: Selector) -> Key | None:
    """The key of the rows that records of this key are about; None if it is in their values."""
    if selector.kind != KEY:
        return None
    found = decode_changes([(selector.text, None)], topic.key, topic.format)
    return found.changes[0].key if found.changes else None


def count_rows(plan: DerivedPlan) -> Rows:
    """Of the tables that are concerned."""
    with open_sink(load_config(Path(plan.declared))) as sink:
        sink.open()
        return {it.table: sink.count_rows(it) for it in sink.targets if it.table in plan.tables}


def excise_sink(
    plan: DerivedPlan, job: Job, selector: Selector | None
) -> tuple[Mapping[str, Any], list[str]]:
    """What is known of it afterwards, and what it may still have. The log has none of the records
    any more. Raises `MillstreamError`; then it can be repeated."""
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
        left = sink.purge()
        sink.open()
        return {"positions": _shown(sink.positions())}, left


def verify_sink(
    cluster: Cluster,
    plan: DerivedPlan,
    report: Mapping[str, Any],
    job: Job,
    selector: Selector | None,
) -> list[str]:
    """What is wrong with the sink now. With a key, its rows are looked for."""
    config = load_config(Path(plan.declared))
    problems = []
    with open_sink(config) as sink:
        sink.open()
        positions = sink.positions()
        for place, reached in report["positions"].items():
            topic, _, partition = place.rpartition("-")
            now = positions.get(Place(topic, int(partition)))
            if now is not None and [now.topic_id] == reached[:1] and now.offset < reached[1]:
                problems.append(
                    f"sink {plan.name} is at offset {now.offset} of {place}, before {reached[1]}, "
                    "where it was after the excision: an older copy was restored. Excise again"
                )
        if selector is not None and not sink.keeps_history:
            problems += _rows_left(cluster, sink, config, plan, job, selector)
    return problems


def _rows_left(
    cluster: Cluster,
    sink: Sink,
    config: SinkConfig,
    plan: DerivedPlan,
    job: Job,
    selector: Selector,
) -> list[str]:
    problems = []
    targets = {it.topic: it for it in sink.targets}
    for topic in config.topics:
        key = row_key(topic, selector)
        if topic.table not in plan.tables or key is None:
            continue
        if sink.stored_rows(targets[topic.topic], [key]):
            positions = _positions_of(sink, topic.topic)
            if not _later(cluster, job, topic.topic, positions, selector):
                problems.append(f"{topic.table} of sink {plan.name} has a row of the key")
    return problems


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
        later = _later(cluster, job, topic.topic, positions, selector)
        records = [(selector.text, None), *later]
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


def _later(
    cluster: Cluster,
    job: Job,
    topic: str,
    positions: Mapping[Place, Position],
    selector: Selector,
) -> list[tuple[bytes | None, bytes | None]]:
    """The committed records of the key from after the search, up to where the target is."""
    searched = {
        it.partition: it.searched_to
        for plan in job.topics
        if plan.topic == topic
        for it in plan.partitions
    }
    found: list[tuple[bytes | None, bytes | None]] = []
    for place, position in positions.items():
        reached = position._replace(offset=searched.get(place.partition, 0))
        while reached.offset < position.offset:
            before = reached
            for answer in fetch(cluster, {place: reached}):
                if answer.columns is not None:
                    offsets = memoryview(answer.columns.offsets).cast("q")
                    found += [
                        pair
                        for pair, offset in zip(pairs(answer.columns), offsets, strict=True)
                        if pair[0] == selector.text and offset < position.offset
                    ]
                reached = reached._replace(offset=max(reached.offset, answer.next_offset))
            if reached == before:
                break  # up to the end of the log there are only markers, or nothing
    return found


def _shown(positions: Mapping[Place, Position]) -> dict[str, list[Any]]:
    return {str(place): [it.topic_id, it.offset] for place, it in positions.items()}
