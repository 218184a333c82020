"""What a sink has: hashes of its rows for receipts, and the rows that are of selected records.

A look reads all rows of the tables that an excision concerns. Rows of a key are known by the key;
those of a predicate by the predicate itself, where rows have the fields that it asks for
(`predicates.py`). `verify_sink` compares a second look with the one of the receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from millstream.admin.offsets import start_offsets
from millstream.client.cluster import Cluster
from millstream.connect.sinks.changes import Key, Row, decode_changes, document_id
from millstream.connect.sinks.config import TopicConfig, load_config
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.positions import Place, Position
from millstream.connect.sinks.reading import Fetched, fetch, pairs
from millstream.connect.sinks.runner import SinkRunner
from millstream.connect.sinks.sink import Sink, Target
from millstream.errors import ApiError, ErrorCode
from millstream.excision.digests import Digest, RowsDigest, compare
from millstream.excision.documents import (
    KEY,
    NOT_SEARCHED,
    DerivedPlan,
    Job,
    Selector,
    Undecidable,
)

REBUILD, ROWS = "rebuild", "rows of the key"  # how a sink is excised, see `sinks.py`
BY_KEY, BY_PREDICATE = "by the key", "by the predicate"
NO_SELECTOR = f"{NOT_SEARCHED}the key or predicate was not given"
OFFSET, PARTITION = "__offset", "__partition"  # of changes, in sinks that keep these
PAGE_ROWS = 10_000
LOOKS_MAX = 3

Pair = tuple[bytes | None, bytes | None]
Chooser = Callable[[Sequence[tuple[str, Row]]], list[tuple[str, Row]]]


@dataclass(frozen=True)
class TableLook:
    """What a table has: the hash of all its rows, and of those that the selector selects."""

    rows: Digest
    selected: Digest | None
    how: str  # they were selected, or why they could not be
    ids: frozenset[str] = frozenset()  # of the selected rows
    excised: int = 0  # changes that came from excised records, if it keeps changes


@dataclass(frozen=True)
class Look:
    """What a sink has, of the tables that are concerned, and where it is in the log."""

    positions: Mapping[Place, Position]
    is_still: bool  # it was at these positions all the time
    tables: Mapping[str, TableLook]
    keeps_history: bool  # changes instead of rows

    def fields(self, when: str) -> dict[str, Any]:
        """As a report has it."""
        tables = self.tables.items()
        return {
            f"rows_{when}": {name: it.rows["rows"] for name, it in tables},
            f"hashes_{when}": {name: it.rows["sha256"] for name, it in tables},
            f"selected_{when}": {name: it.selected for name, it in tables if it.selected},
            "selected_by": {name: it.how for name, it in tables},
            "positions": shown(self.positions),
            "is_still": self.is_still,
        }


def look(plan: DerivedPlan, job: Job, selector: Selector | None) -> Look:
    """What the sink has now. It may be running, so it is looked at until it stays in its place."""
    config = load_config(Path(plan.declared))
    topics = {it.topic: it for it in config.topics}
    with open_sink(config) as sink:
        sink.open()
        for _ in range(LOOKS_MAX):
            positions = sink.positions()
            tables = {
                it.table: _look_at(sink, it, topics[it.topic], job, selector)
                for it in sink.targets
                if it.table in plan.tables
            }
            is_still = sink.positions() == positions
            if is_still:
                break
        return Look(positions, is_still, tables, sink.keeps_history)


def _look_at(
    sink: Sink, target: Target, topic: TopicConfig, job: Job, selector: Selector | None
) -> TableLook:
    chosen, how = None, NO_SELECTOR
    if selector is not None:
        try:
            chosen, how = chooser(target, topic, selector, [it.topic for it in job.topics])
        except Undecidable as error:
            how = f"{NOT_SEARCHED}{error}"
    whole, selected = RowsDigest(job.salt), RowsDigest(job.salt)
    ids: set[str] = set()
    excised = 0
    rows = sink.rows(target)
    while page := list(islice(rows, PAGE_ROWS)):
        whole.add(page)
        if sink.keeps_history:
            excised += sum(_is_excised(job, topic.topic, row) for _, row in page)
        if chosen is not None:
            try:
                found = chosen(page)
            except Undecidable as error:
                chosen, how = None, f"{NOT_SEARCHED}{error}"
                continue
            selected.add(found)
            ids.update(id for id, _ in found)
    result = None if chosen is None else selected.result()
    return TableLook(whole.result(), result, how, frozenset(ids), excised)


def chooser(
    target: Target, topic: TopicConfig, selector: Selector, topics: Sequence[str]
) -> tuple[Chooser, str]:
    """Selects the rows that are of the selected records of these topics, by what they have. Raises
    `Undecidable` if they do not have what it takes."""
    if selector.kind != KEY:
        from millstream.excision.predicates import Predicate

        if topic.topic not in topics:
            raise Undecidable(f"the predicate is about records of {', '.join(topics)}")
        return Predicate(selector.text.decode(), target, topic.format).select, BY_PREDICATE
    key = row_key(topic, selector)
    if key is None:
        names = ", ".join(topic.key)
        raise Undecidable(f"the key of the records does not tell the {names} of a row")
    ids = ids_of([key], target)
    return lambda rows: [it for it in rows if it[0] in ids], BY_KEY


def ids_of(keys: Sequence[Key], target: Target) -> set[str]:
    """The ids that rows of these keys have: in a table, values have the types of its columns."""
    ids = {document_id(it) for it in keys}
    if target.columns is not None:
        from millstream.connect.sinks.columns import to_json, typed_keys

        typed = typed_keys(keys, target.columns, target.key)
        ids.update(document_id(tuple(map(to_json, it))) for it in typed)
    return ids


def _is_excised(job: Job, topic: str, change: Row) -> bool:
    """Whether a change that a sink keeps came from a record of the job."""
    return any(
        change[OFFSET] in place.ranges
        for plan in job.topics
        if plan.topic == topic
        for place in plan.places
        if place.partition == change[PARTITION]
    )


def verify_sink(
    cluster: Cluster,
    plan: DerivedPlan,
    report: Mapping[str, Any],
    job: Job,
    selector: Selector | None,
    *,
    compare_hashes: bool,
) -> tuple[list[str], list[str]]:
    """What is wrong with the sink now, and what of it could not be looked for. The hashes of the
    report say what it had right after the excision."""
    found = look(plan, job, selector)
    problems = [*_older(plan, report, found.positions)]
    unseen = []
    is_where_it_was = shown(found.positions) == report["positions"]
    has_gone_on = not (is_where_it_was and found.is_still and report["is_still"])
    for name, table in found.tables.items():
        where = f"{name} of sink {plan.name}"
        if table.excised:
            changes = "1 change" if table.excised == 1 else f"{table.excised} changes"
            problems.append(f"{where} has {changes} of the records")
        if table.selected is None:
            unseen.append(f"{where} was not searched: {table.how.removeprefix(NOT_SEARCHED)}")
        if compare_hashes:
            before, after = (report.get(f"hashes_{it}", {}).get(name) for it in ("before", "after"))
            problems += compare(
                where, plan.kind, table.rows, before, after, has_gone_on=has_gone_on
            )
    if selector is not None and not found.keeps_history:
        for text, is_certain in _rows_left(cluster, plan, report, job, selector, found):
            (problems if is_certain else unseen).append(text)
    return problems, unseen


def _older(
    plan: DerivedPlan, report: Mapping[str, Any], positions: Mapping[Place, Position]
) -> Iterator[str]:
    for place, reached in report["positions"].items():
        topic, _, partition = place.rpartition("-")
        now = positions.get(Place(topic, int(partition)))
        if now is not None and [now.topic_id] == reached[:1] and now.offset < reached[1]:
            yield (
                f"sink {plan.name} is at offset {now.offset} of {place}, before {reached[1]}, "
                "where it was after the excision: an older copy was restored. Excise again"
            )


def _rows_left(
    cluster: Cluster,
    plan: DerivedPlan,
    report: Mapping[str, Any],
    job: Job,
    selector: Selector,
    found: Look,
) -> Iterator[tuple[str, bool]]:
    """Rows that are selected and did not come from later records, and whether that is certain. A
    rebuilt table has nothing of the records, but can have rows that are selected: the key of a row
    may come from the value, and a predicate may select a row that has its fields in another form.
    The report counts these."""
    config = load_config(Path(plan.declared))
    targets = {it.table: it for it in open_sink(config).targets}
    parse = SinkRunner(config).parse
    for topic in config.topics:
        table = found.tables.get(topic.table)
        if table is None or not table.ids:
            continue
        known = report.get("selected_after", {}).get(topic.table)
        if plan.how == REBUILD and table.selected == known:
            continue
        here = {place: it for place, it in found.positions.items() if place.topic == topic.topic}
        later = later_records(cluster, job, topic.topic, here)
        left = without_later(table.ids, topic, targets[topic.table], later, parse)
        if len(left) <= (known["rows"] if known and plan.how == REBUILD else 0):
            continue
        rows = "1 row" if len(left) == 1 else f"{len(left)} rows"
        by = "of the key" if selector.kind == KEY else "that the predicate selects"
        text = f"{topic.table} of sink {plan.name} has {rows} {by}"
        if _has_lost_later(cluster, job, here):
            yield f"{text}, perhaps from later records, which are no longer in the log", False
        else:
            yield text, True


def without_later(
    ids: Iterable[str],
    topic: TopicConfig,
    target: Target,
    records: Iterator[Pair],
    parse: Callable[[bytes], Any] | None = None,
) -> set[str]:
    """The ids of rows that none of these records is about."""
    left = set(ids)
    while left and (page := list(islice(records, PAGE_ROWS))):
        changes = decode_changes(page, topic.key, topic.format, parse=parse, parse_key=parse)
        left -= ids_of([it.key for it in changes.changes], target)
    return left


def later_records(
    cluster: Cluster, job: Job, topic: str, positions: Mapping[Place, Position]
) -> Iterator[Pair]:
    """The committed records from after the search up to where the target is, as far as retention
    has not deleted them."""
    searched = _searched(job, topic)
    for place, end in positions.items():
        reached = end._replace(offset=searched.get(place.partition, 0))
        while reached.offset < end.offset:
            before = reached
            for answer in _fetch(cluster, place, reached):
                if answer.columns is not None:
                    offsets = memoryview(answer.columns.offsets).cast("q")
                    for pair, offset in zip(pairs(answer.columns), offsets, strict=True):
                        if offset < end.offset:
                            yield pair
                reached = reached._replace(offset=max(reached.offset, answer.next_offset))
            if reached == before:
                break  # up to the end of the log there are only markers, or nothing


def _fetch(cluster: Cluster, place: Place, position: Position) -> list[Fetched]:
    """The records that follow the position, or the beginning of the log, if that comes later."""
    try:
        return fetch(cluster, {place: position})
    except ApiError as error:
        start = start_offsets(cluster, [place])[place]
        if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE or start <= position.offset:
            raise
        return [Fetched(place, None, start, start)]


def _searched(job: Job, topic: str) -> dict[int, int]:
    """By partition, up to where records were searched: later ones are not part of the job."""
    return {
        it.partition: it.searched_to
        for plan in job.topics
        if plan.topic == topic
        for it in plan.partitions
    }


def _has_lost_later(cluster: Cluster, job: Job, places: Iterable[Place]) -> bool:
    """Whether retention has deleted records from after the search."""
    starts = start_offsets(cluster, places)
    return any(
        start > _searched(job, topic).get(partition, 0)
        for (topic, partition), start in starts.items()
    )


def row_key(topic: TopicConfig, selector: Selector) -> Key | None:
    """The key of the rows that records of this key are about; None if it is in their values."""
    if selector.kind != KEY:
        return None
    found = decode_changes([(selector.text, None)], topic.key, topic.format)
    return found.changes[0].key if found.changes else None


def shown(positions: Mapping[Place, Position]) -> dict[str, list[Any]]:
    return {str(place): [it.topic_id, it.offset] for place, it in positions.items()}
