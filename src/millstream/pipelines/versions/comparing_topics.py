"""How a topic of two versions differs at one cut: counts, columns, samples.

A version writes to the public topic while it is in force, and to its private topic otherwise. The
document has the ends of these topics at each switch (`Versions.spans`), so the records of a version
can be read in the order in which it wrote them:

    span       in force    version 1 wrote to        version 2 wrote to
    0          1           alerts      0 to 20       alerts.v2   0 to 18
    1          2           alerts.v1   0 to 5        alerts     20 to 24
    2          1           alerts     24 to 30       alerts.v2  18 to 25

Records are copied to a temporary SQLite file, which bounds memory. If all of them have keys, the
last value of each key is compared, and a record without a value deletes its key. Otherwise, and on
request, records are compared as bags. Values that are JSON objects are compared by column, others
as a whole.
"""

from __future__ import annotations

import json
import math
import sqlite3
import tempfile
import time as clock
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.client.fetching import fetch_committed, log_start_offset
from millstream.errors import ConfigError
from millstream.pipelines.offsets import OffsetRange, Offsets, from_json
from millstream.pipelines.results import END, KIND, PRELIMINARY
from millstream.pipelines.versions.differences import NEAR_ZERO, SAMPLES, TOLERANCE, Diff, Sample
from millstream.pipelines.versions.registry import Versions, private_topic
from millstream.records.columns import decode_columns

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster

KEY = "key"
VALUE = "value"  # the only column of values that are no JSON objects
FETCH_WAIT_MS = 500
OPEN_TRANSACTION_SECONDS_MAX = 70.0  # tasks' transactions time out after 60 seconds
_CREATE = "CREATE TABLE records (side INTEGER, place INTEGER, key BLOB, value BLOB)"
# SQLite takes the other columns from the row with the maximum.
_LAST = "SELECT side, key, value, max(place) FROM records GROUP BY side, key"
_BY_KEY = (
    "SELECT key, max(CASE side WHEN 0 THEN value END), max(CASE side WHEN 1 THEN value END) "
    f"FROM ({_LAST}) WHERE value IS NOT NULL GROUP BY key ORDER BY key"
)

Row = Mapping[str, Any]
RecordBytes = tuple[bytes | None, bytes | None]


# Which records


def ranges_of(document: Versions, version: str, topic: str, ends: Offsets) -> list[OffsetRange]:
    """What a version has written to a topic, in order; `ends` are those of all its topics now."""
    spans = document.spans
    if document.number + 1 != len(spans):
        raise ConfigError(
            f"the versions of {document.pipeline} were switched {document.number} times, and only "
            f"the last {len(spans)} are known: topic {topic} cannot be divided by version"
        )
    begins = [from_json(it.begins) for it in spans]
    found = []
    described = document.get(version)
    if described.state_from in document.versions:  # what came before was written by that version
        before = from_json(described.state_ends)
        found += ranges_of(document, described.state_from or "", topic, before)
    for number, span in enumerate(spans):
        name = topic if span.version == version else private_topic(topic, version)
        until = begins[number + 1] if number + 1 < len(spans) else ends
        for at, last in sorted(ends.items()):
            if at[0] == name:
                start, end = begins[number].get(at, 0), until.get(at, 0)
                found.append(OffsetRange(*at, start, min(end, last)))
    return [it for it in found if it.size]


def read_range(cluster: Cluster, wanted: OffsetRange) -> Iterator[RecordBytes]:
    """The committed records; raises `ConfigError` if a transaction in them stays open."""
    from millstream.records.arrow import binary_array

    topic, partition, offset, end = wanted
    deadline = clock.monotonic() + OPEN_TRANSACTION_SECONDS_MAX
    while offset < end:
        part = fetch_committed(cluster, topic, partition, offset, wait_ms=FETCH_WAIT_MS)
        columns = decode_columns(
            part.records, first_offset=offset, end_offset=end, aborted=part.aborted
        )
        if columns.next_offset <= offset:
            if part.end_offset > offset:
                return  # compaction has left nothing of the rest
            if clock.monotonic() > deadline:
                raise ConfigError(
                    f"a transaction in {topic}-{partition} is open: find it with `millstream "
                    "transaction list`, and compare when it has ended"
                )
            continue
        offset = columns.next_offset
        keys = binary_array(columns.keys, columns.row_count).to_pylist()
        yield from zip(
            keys, binary_array(columns.values, columns.row_count).to_pylist(), strict=True
        )


def retained(cluster: Cluster, ranges: Iterable[OffsetRange]) -> tuple[list[OffsetRange], int]:
    """The ranges without what retention has deleted, and the number of offsets that it has."""
    kept, lost = [], 0
    for it in ranges:
        start = max(it.start, min(log_start_offset(cluster, it.topic, it.partition), it.end))
        lost += start - it.start
        kept.append(it._replace(start=start))
    return kept, lost


# Comparing them


class TopicComparison:
    """The records of two versions, in a temporary file."""

    def __init__(
        self,
        name: str,
        *,
        watermark_ms: int | None = None,
        time: str | None = None,
        samples: int = SAMPLES,
        as_bags: bool = False,
    ) -> None:
        self._name = name
        self._watermark_ms = watermark_ms
        self._time = time or END
        self._samples = samples
        self._as_bags = as_bags
        self._is_json = True
        self._columns: tuple[dict[str, None], dict[str, None]] = ({}, {})
        self._directory = tempfile.TemporaryDirectory(prefix="millstream-diff-")
        self._database = sqlite3.connect(Path(self._directory.name) / "records.db")
        self._database.execute("PRAGMA synchronous = OFF")
        self._database.execute(_CREATE)

    def close(self) -> None:
        self._database.close()
        self._directory.cleanup()

    def add(self, side: int, records: Iterable[RecordBytes]) -> None:
        """Records of the first version (0) or of the second (1), in their order."""

        def rows() -> Iterator[tuple[int, int, bytes | None, bytes | None]]:
            for place, (key, value) in enumerate(records, start=first):
                if value is not None and self._is_json:
                    self._look_at(side, value)
                yield side, place, key, value

        ((first,),) = self._database.execute("SELECT count(*) FROM records").fetchall()
        self._database.executemany("INSERT INTO records VALUES (?, ?, ?, ?)", rows())

    def _look_at(self, side: int, value: bytes) -> None:
        found = parse(value)
        if found is None:
            self._is_json = False
        else:
            self._columns[side].update(dict.fromkeys(found))

    def result(self) -> Diff:
        self._database.execute("CREATE INDEX by_key ON records (side, key, place)")
        ((keyless,),) = self._database.execute(
            "SELECT count(*) FROM records WHERE key IS NULL"
        ).fetchall()
        return self._bags() if keyless or self._as_bags else self._by_key()

    def _common(self) -> list[str]:
        if not self._is_json:
            return [VALUE]
        first, second = self._columns
        # A side without records has no columns to compare with.
        return [it for it in first or second if it in (second or first)]

    def _diff(self, rows: list[int], open_rows: list[int], **found: Any) -> Diff:
        common = self._common()
        is_timed = self._is_json and self._time in common and self._watermark_ms is not None
        return Diff(
            self._name,
            (rows[0], rows[1]),
            (open_rows[0], open_rows[1]),
            columns_of_one=(
                tuple(it for it in self._columns[0] if self._is_json and it not in common),
                tuple(it for it in self._columns[1] if self._is_json and it not in common),
            ),
            time=self._time if is_timed else None,
            is_topic=True,
            **found,
        )

    def _row(self, value: bytes | None) -> Row | None:
        if value is None:
            return None
        return parse(value) if self._is_json else {VALUE: shown(value)}

    def _is_open(self, row: Row | None) -> bool:
        if row is None or not self._is_json:
            return False
        if row.get(KIND) == PRELIMINARY:
            return True
        if self._watermark_ms is None or self._time not in self._common():
            return False
        time_ms = parse_time_ms(row.get(self._time))
        return time_ms is not None and time_ms > self._watermark_ms

    # By key

    def _by_key(self) -> Diff:
        rows, open_rows, only = [0, 0], [0, 0], [0, 0]
        by_column: dict[str, int] = {}
        samples: dict[str, list[Sample]] = {"both": [], "0": [], "1": []}
        differing = 0
        columns = [it for it in self._common() if it != KIND]
        for key, *values in self._database.execute(_BY_KEY):
            pair = [self._row(it) for it in values]
            is_open = [self._is_open(it) for it in pair]
            for side in (0, 1):
                rows[side] += pair[side] is not None
                open_rows[side] += is_open[side]
            if any(is_open):
                continue
            picked = [None if it is None else {c: it.get(c) for c in columns} for it in pair]
            kind = "both"
            if picked[0] is None or picked[1] is None:
                side = 0 if picked[1] is None else 1
                only[side] += 1
                kind = str(side)
            else:
                changed = [it for it in columns if not is_same(picked[0][it], picked[1][it])]
                if not changed:
                    continue
                differing += 1
                for it in changed:
                    by_column[it] = by_column.get(it, 0) + 1
            if len(samples[kind]) < self._samples:
                samples[kind].append(Sample({KEY: shown(key)}, picked[0], picked[1]))
        return self._diff(
            rows,
            open_rows,
            only=(only[0], only[1]),
            differing=differing,
            by_column=by_column,
            samples=tuple(it for each in samples.values() for it in each),
        )

    # As bags

    def _bags(self) -> Diff:
        columns = [it for it in self._common() if it != KIND]

        def canonical(value: bytes | None) -> str | None:
            row = self._row(value)
            return None if row is None else json.dumps({it: row.get(it) for it in columns})

        self._database.create_function("canonical", 1, canonical, deterministic=True)
        self._database.create_function("is_open", 1, lambda it: self._is_open(self._row(it)))
        rows, open_rows = [0, 0], [0, 0]
        for side, count, opened in self._database.execute(
            "SELECT side, count(*), coalesce(sum(is_open(value)), 0) FROM records GROUP BY side"
        ):
            rows[side], open_rows[side] = count, opened
        found = self._database.execute(
            "SELECT key, canonical(value) AS text, sum(1 - side) AS a, sum(side) AS b FROM records "
            "WHERE NOT is_open(value) GROUP BY key, text HAVING a <> b ORDER BY key, text"
        )
        only = [0, 0]
        samples: tuple[list[Sample], list[Sample]] = ([], [])
        for key, text, first, second in found:
            side = 0 if first > second else 1
            only[side] += abs(first - second)
            row = json.loads(text or "{}")
            if len(samples[side]) < self._samples:
                named = {} if key is None else {KEY: shown(key)}
                pair = (row, None) if side == 0 else (None, row)
                samples[side].append(Sample(named, *pair))
        return self._diff(
            rows,
            open_rows,
            only=(only[0], only[1]),
            samples=(*samples[0], *samples[1]),
            keyed=False,
        )


def compare_topic(
    cluster: Cluster,
    document: Versions,
    versions: tuple[str, str],
    topic: str,
    ends: Offsets,
    **options: Any,
) -> Diff:
    """Compare what two versions have written to a topic up to these ends."""
    comparison = TopicComparison(topic, **options)
    deleted = [0, 0]
    with closing(comparison):
        for side, version in enumerate(versions):
            ranges, deleted[side] = retained(cluster, ranges_of(document, version, topic, ends))
            for it in ranges:
                comparison.add(side, read_range(cluster, it))
        found = comparison.result()
    return found.without(deleted[0], deleted[1])


# Values


def parse(value: bytes) -> dict[str, Any] | None:
    """A JSON object; None for anything else."""
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def shown(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def parse_time_ms(value: Any) -> int | None:
    """A time as Spark's `to_json` writes it; None for anything else."""
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def is_same(one: Any, other: Any) -> bool:
    """Equal, up to the last digits of doubles."""
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=float(TOLERANCE), abs_tol=float(NEAR_ZERO))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(it, other[k]) for k, it in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)
