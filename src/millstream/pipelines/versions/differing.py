"""How two versions differ at one cut: counts, columns, samples.

Both versions have read the same records. Their topics are compared by `comparing_topics.py`, and
their tables in SQL, in one read-only transaction, which first compares their positions. Tables with
the same key are joined by it; others are compared as bags of rows, in the columns that both have.
Doubles may differ by a small share, because sums depend on the order.

Only what is final is compared. A row is open, if its time is past the lower watermark of the two
versions at the cut, or if it is marked as preliminary: a version that read everything at once has
other batches, and its windows may be emitted later or earlier. The time is the column `window_end`,
unless another is named. Without such a column all rows are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from millstream.connect.tables.schema import quote
from millstream.errors import ConfigError
from millstream.pipelines.offsets import Offsets
from millstream.pipelines.query_files import watermark_ms_of
from millstream.pipelines.results import END, KIND, PRELIMINARY
from millstream.pipelines.versions.catalog import Catalog, PostgresWork, Work
from millstream.pipelines.versions.comparing_topics import compare_topic
from millstream.pipelines.versions.differences import NEAR_ZERO, SAMPLES, TOLERANCE, Diff, Sample
from millstream.pipelines.versions.halting import (
    Operator,
    halted,
    is_at,
    position_of,
    read_answer,
)
from millstream.pipelines.versions.marks import open_cluster
from millstream.pipelines.versions.registry import TableOutput, Versions
from millstream.pipelines.versions.switching import find_document
from millstream.pipelines.versions.topics import output_ends, topic_ends

if TYPE_CHECKING:
    from millstream.pipelines.running.settings import Settings

_FLOATS = ("REAL", "double precision", "real")


def diff_table(
    work: Work,
    tables: tuple[TableOutput, TableOutput],
    *,
    watermark_ms: int | None = None,
    time: str | None = None,
    samples: int = SAMPLES,
) -> Diff:
    """Compare the tables of two versions; raises `ConfigError` if they cannot be compared."""
    for it in tables:
        if work.kind(it.physical) != "table":
            raise ConfigError(f"there is no table {it.physical}: its version has not run yet")
    return Comparison(work, tables, watermark_ms, time, samples).result()


class Comparison:
    """The statements that compare two tables, `a` and `b`."""

    def __init__(
        self,
        work: Work,
        tables: tuple[TableOutput, TableOutput],
        watermark_ms: int | None,
        time: str | None,
        samples: int,
    ) -> None:
        self._work = work
        self._tables = tables
        self._samples = samples
        self._names = tuple(work.quoted(it.physical) for it in tables)
        self._is_postgres = isinstance(work, PostgresWork)
        found = [work.columns(it.physical) for it in tables]
        self._columns = [it for it in found[0] if it in found[1]]
        self._of_one = (
            tuple(it for it in found[0] if it not in found[1]),
            tuple(it for it in found[1] if it not in found[0]),
        )
        self._floats = self._float_columns(tables[0].physical)
        self._watermark = None if watermark_ms is None else _text(watermark_ms)
        self._time = self._time_column(time)
        first, second = tables
        self._is_keyed = (first.key, first.mode) == (
            second.key,
            second.mode,
        ) and first.mode == "upsert"

    def _time_column(self, named: str | None) -> str | None:
        if named is not None and named not in self._columns:
            raise ConfigError(
                f"table {self._tables[0].name} has no column {named} in both versions: "
                f"{', '.join(self._columns)}"
            )
        return named or (END if END in self._columns else None)

    def _float_columns(self, table: str) -> set[str]:
        if self._is_postgres:
            found = self._work.execute(
                "SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute "
                "WHERE attrelid = to_regclass(?) AND attnum > 0",
                (self._work.quoted(table),),
            )
        else:
            info = self._work.execute(f"PRAGMA table_info({quote(table)})")
            found = [(it[1], it[2]) for it in info]
        return {name for name, kind in found if kind in _FLOATS}

    def result(self) -> Diff:
        counts = [self._count(f"{name} AS a", "") for name in self._names]
        final = [self._count(f"{name} AS a", self._final("a")) for name in self._names]
        diff = self._by_key() if self._is_keyed else self._as_bags()
        return Diff(
            self._tables[0].name,
            (counts[0], counts[1]),
            (counts[0] - final[0], counts[1] - final[1]),
            columns_of_one=self._of_one,
            time=self._time if self._watermark is not None else None,
            keyed=self._is_keyed,
            **diff,
        )

    def _final(self, *sides: str) -> str:
        """The condition for rows that are final; true if nothing is known."""
        terms = []
        if self._time is not None and self._watermark is not None:
            zone = "+00" if self._is_postgres else ""
            terms += [f"{it}.{quote(self._time)} <= '{self._watermark}{zone}'" for it in sides]
        if KIND in self._columns:
            terms += [f"{it}.{quote(KIND)} <> '{PRELIMINARY}'" for it in sides]
        return " AND ".join(terms) or "1 = 1"

    def _count(self, tables: str, condition: str) -> int:
        where = f" WHERE {condition}" if condition else ""
        return int(self._work.execute(f"SELECT count(*) FROM {tables}{where}")[0][0])

    # Tables with a key

    def _by_key(self) -> Mapping[str, Any]:
        key = self._tables[0].key
        join = " AND ".join(f"a.{quote(it)} = b.{quote(it)}" for it in key)
        values = [it for it in self._columns if it not in key and it != KIND]
        differ = {it: self._differs(it) for it in values}
        any_differs = " OR ".join(differ.values()) or "1 = 0"
        both = f"{self._names[0]} AS a JOIN {self._names[1]} AS b ON {join}"
        final = self._final("a", "b")
        sums = [f"sum(CASE WHEN {it} THEN 1 ELSE 0 END)" for it in (any_differs, *differ.values())]
        (found,) = self._work.execute(f"SELECT {', '.join(sums)} FROM {both} WHERE {final}")
        counts = [int(it or 0) for it in found]
        alone = [
            f"{one} AS a LEFT JOIN {other} AS b ON {join}"
            for one, other in (self._names, self._names[::-1])
        ]
        missing = f"b.{quote(key[0])} IS NULL AND {self._final('a')}"
        return {
            "only": (self._count(alone[0], missing), self._count(alone[1], missing)),
            "differing": counts[0],
            "by_column": {
                name: count for name, count in zip(differ, counts[1:], strict=True) if count
            },
            "samples": self._keyed_samples(both, f"{final} AND ({any_differs})", alone, missing),
        }

    def _keyed_samples(
        self, both: str, differing: str, alone: Sequence[str], missing: str
    ) -> tuple[Sample, ...]:
        key = self._tables[0].key
        values = [it for it in self._columns if it not in key]
        order = ", ".join(f"a.{quote(it)}" for it in key)

        def rows(tables: str, condition: str, sides: str) -> list[tuple[Any, ...]]:
            columns = [f"a.{quote(it)}" for it in key]
            columns += [f"{side}.{quote(it)}" for side in sides for it in values]
            return self._work.execute(
                f"SELECT {', '.join(columns)} FROM {tables} WHERE {condition} "
                f"ORDER BY {order} LIMIT {self._samples}"
            )

        width, count = len(key), len(values)
        samples = []
        for row in rows(both, differing, "ab"):
            named = dict(zip(key, row[:width], strict=True))
            first = dict(zip(values, row[width : width + count], strict=True))
            second = dict(zip(values, row[width + count :], strict=True))
            samples.append(Sample(named, first, second))
        for side, tables in enumerate(alone):
            for row in rows(tables, missing, "a"):
                named = dict(zip(key, row[:width], strict=True))
                only = dict(zip(values, row[width:], strict=True))
                samples.append(Sample(named, *((only, None) if side == 0 else (None, only))))
        return tuple(samples)

    def _differs(self, column: str) -> str:
        a, b = f"a.{quote(column)}", f"b.{quote(column)}"
        distinct = f"{a} IS DISTINCT FROM {b}" if self._is_postgres else f"{a} IS NOT {b}"
        if column not in self._floats:
            return f"({distinct})"
        larger = "GREATEST" if self._is_postgres else "MAX"
        close = f"abs({a} - {b}) <= {TOLERANCE} * {larger}(abs({a}), abs({b})) + {NEAR_ZERO}"
        return f"({distinct} AND NOT coalesce({close}, 1 = 0))"

    # Tables without one

    def _as_bags(self) -> Mapping[str, Any]:
        columns = [it for it in self._columns if it != KIND]
        listed = ", ".join(quote(it) for it in columns)
        numbered = [
            f"SELECT {listed}, row_number() OVER (PARTITION BY {listed}) AS millstream_copy "
            f"FROM {name} AS a WHERE {self._final('a')}"
            for name in self._names
        ]
        missing = [f"{numbered[0]} EXCEPT {numbered[1]}", f"{numbered[1]} EXCEPT {numbered[0]}"]
        counts = [self._count(f"({it}) AS a", "") for it in missing]
        samples = []
        for side, statement in enumerate(missing):
            found = self._work.execute(
                f"SELECT {listed} FROM ({statement}) AS a ORDER BY {listed} LIMIT {self._samples}"
            )
            for row in found:
                named = dict(zip(columns, row, strict=True))
                samples.append(Sample({}, *((named, None) if side == 0 else (None, named))))
        return {"only": (counts[0], counts[1]), "samples": tuple(samples)}


def _text(time_ms: int) -> str:
    """A time as SQLite's tables have it, which PostgreSQL reads too."""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")


# Two versions


@dataclass(frozen=True)
class VersionsDiff:
    """How two versions differ at a cut."""

    pipeline: str
    versions: tuple[str, str]
    cut: Offsets
    watermarks_ms: tuple[int | None, int | None]
    tables: tuple[Diff, ...]
    topics: tuple[Diff, ...] = ()
    missing: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # outputs that one does not write

    @property
    def is_equal(self) -> bool:
        return all(it.is_equal for it in (*self.tables, *self.topics)) and not any(self.missing)

    @property
    def watermark_ms(self) -> int | None:
        """Up to which both are final; None if one of them has none."""
        known = [it for it in self.watermarks_ms if it is not None]
        return min(known) if len(known) == 2 else None


def compare_versions(
    catalog: Catalog,
    settings: Settings,
    pipeline: str,
    versions: tuple[str, str],
    *,
    time: str | None = None,
    samples: int = SAMPLES,
    all_records: bool = False,
    show: Callable[[str], None] = lambda text: None,
    warn: Callable[[str], None] = lambda text: None,
) -> VersionsDiff:
    """Halt both versions at a cut, compare what they have written, and let them go on.

    `all_records` compares topics with keys as bags, instead of the last value of each key.
    """
    document = find_document(catalog, pipeline)
    described = [document.get(it) for it in versions]
    if versions[0] == versions[1]:
        raise ConfigError(f"version {versions[0]} cannot be compared with itself")
    for it in described:
        if not it.is_caught_up:
            raise ConfigError(
                f"version {it.version} of {pipeline} is catching up, and the other version would "
                "have to wait for it: compare them when it has caught up"
            )
        if it.by_arrival:
            warn(
                f"results of {', '.join(it.by_arrival)} depend on when records arrived: version "
                f"{it.version} may differ although it computes the same"
            )
    operator = Operator(catalog, pipeline, versions, show=show)
    with open_cluster(settings) as cluster:
        reads = {topic for it in described for topic in it.reads}
        with (
            halted(operator, lambda: topic_ends(cluster, reads)) as cut,
            catalog.snapshot() as work,
            operator.renewing(cut),
        ):
            found = compare_at(work, document, versions, cut, time, samples)
            options = {
                "watermark_ms": found.watermark_ms,
                "time": time,
                "samples": samples,
                "as_bags": all_records,
            }
            first, second = (it.topics for it in described)
            ends = output_ends(cluster, document)
            topics = [
                compare_topic(cluster, document, versions, it, ends, **options)
                for it in first
                if it in second
            ]
            return replace(found, topics=tuple(topics))


def compare_at(
    work: Work,
    document: Versions,
    versions: tuple[str, str],
    cut: Offsets,
    time: str | None = None,
    samples: int = SAMPLES,
) -> VersionsDiff:
    """In a transaction in which both stand at the cut; raises `ConfigError` if they do not."""
    for it in versions:
        if not is_at(position_of(work, document.pipeline, it), cut):
            raise ConfigError(f"version {it} did not stay at the cut: repeat it")
    answers = [read_answer(work, document.identity(it)) for it in versions]
    watermarks = [
        answer.watermark_ms if answer is not None else stored_watermark_ms(work, document, it)
        for it, answer in zip(versions, answers, strict=True)
    ]
    first, second = ({it.name: it for it in document.get(each).tables} for each in versions)
    outputs = [outputs_of(document, it) for it in versions]
    found = VersionsDiff(
        document.pipeline,
        versions,
        cut,
        (watermarks[0], watermarks[1]),
        (),
        missing=(
            tuple(it for it in outputs[1] if it not in outputs[0]),
            tuple(it for it in outputs[0] if it not in outputs[1]),
        ),
    )
    tables = [
        diff_table(
            work,
            (first[name], second[name]),
            watermark_ms=found.watermark_ms,
            time=time,
            samples=samples,
        )
        for name in first
        if name in second
    ]
    return replace(found, tables=tuple(tables))


def outputs_of(document: Versions, version: str) -> list[str]:
    found = document.get(version)
    return [*(f"table {it.name}" for it in found.tables), *(f"topic {it}" for it in found.topics)]


def stored_watermark_ms(work: Work, document: Versions, version: str) -> int | None:
    """Of a version that does not run, if its checkpoint can be read from here."""
    stored = work.progress(document.identity(version))
    if stored is None or stored.batch_id is None:
        return None
    with suppress(ConfigError):
        return watermark_ms_of(document.get(version).checkpoint, stored.batch_id)
    return None
