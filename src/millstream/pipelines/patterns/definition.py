"""Patterns over the rows of a key, in order: SQL's MATCH_RECOGNIZE, on streams too.

    spree = match("small{2,} big", key="card", time="at", within="10 minutes",
                  where={"small": "amount < 5",
                         "big": "amount > 500 and amount > 10 * avg(small.amount)"},
                  began="first(small.at)", n="count(small)", amount="big.amount")
    payments.transform(spree)                   the matches: card, began, n, amount
    payments.transform(spree.late)              late rows: all columns, _kind, _lateness
    payments.transform(spree.timed_out)         beginnings whose time ended without a match
    payments.transform(spree.with_timed_out)    both, by _kind

`language.py` has the syntax of patterns, `expressions.py` that of conditions and measures. A
variable without a condition is fulfilled by any row. Which rows match is what SQL's standard says:
the first row at which a match can begin; from there, of alternatives the left one, of greedy
quantifiers more rather than fewer. Rows are ordered by time, then by `order_by`, by default the
position in the topic, then by their content, so the result never depends on their arrival.

    within      a match is shorter than this: its last row is less than `within` after its first.
                A stream needs it. A row that is too far away is not taken, so a greedy quantifier
                takes as many as fit
    max_rows    the same for the number of rows; 10,000 if there is a `within`
    skip        where the next match may begin: "past last row", "to next row", "to first x",
                "to last x"
    rows        "one" row for each match, or "all" its rows, then with their columns; "all omitting
                empty" matches; "all with unmatched" rows, whose measures are null
    order       "time", or "arrival": rows are matched when they arrive, in the order of `order_by`,
                by default their position in the topic, and do not wait for the watermark. The rows
                of a key must come in this order, like those of one partition

A match is emitted when no row that is on time can change it: `a b` with the row of b, `a b+` with
the first row that is no b, or at the end of its time. The watermark decides how far rows are in
order. So results come as late as the watermark, and a stream yields what a batch of the same rows
does.

A beginning is timed out if its time ended in the middle of the pattern and no match began there.
Its measures are those of the rows so far: "not followed by" is `order then payment`, timed out.
Such rows may be part of other matches.

A row is late if its time is at or behind the watermark, or null. `stragglers` is "drop", which
counts it in the query's progress under `count_as`, or "divert", for `late`. The same count has
`too_long`, the attempts that were given up because of conditions with more than 2,000 possible ways
to match, or at `max_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.columns import (
    OFFSET_COLUMN,
    POSITION_COLUMN,
    WATERMARK_COLUMN,
    as_column,
    check_time,
    check_watermark,
    kind_of,
    listed,
    name_column,
    name_columns,
)
from millstream.pipelines.durations import Duration, duration_us
from millstream.pipelines.hidden import show_watermark
from millstream.pipelines.lateness import DropOrDivert, Lateness
from millstream.pipelines.patterns.conditions import (
    Code,
    Condition,
    compile_conditions,
    values_of,
)
from millstream.pipelines.patterns.matcher import NO_LIMIT, Compiled
from millstream.pipelines.patterns.matching import (
    EVENTS,
    MASK,
    TIMED_OUT_KIND,
    TOO_LONG_KIND,
    Ordered,
    Output,
    PatternMatch,
    ValueColumn,
)
from millstream.pipelines.patterns.measures import MeasureText, Part, parse_measure
from millstream.pipelines.patterns.spec import MAX_ROWS, PatternSpec, RowOrder, RowsPerMatch
from millstream.pipelines.plans import check_not_aggregated
from millstream.pipelines.results import KIND, LATE, LATENESS, check_no_kind, drop_late
from millstream.pipelines.times.lateness import IS_LATE, is_late, lateness, with_rule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_ORDERED = ("tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz", "binary")
_LONGS = ("tinyint", "smallint", "int", "bigint")


@dataclass(frozen=True)
class Pattern(PatternSpec):
    """Call it with a frame, or pass it to `frame.transform`. It can be used for many frames."""

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The matches."""
        return self._run(frame, wants_time_outs=False).drop(KIND)

    def timed_out(self, frame: DataFrame) -> DataFrame:
        """Beginnings whose time ended without a match."""
        return self.with_timed_out(frame).where(as_column(KIND) == TIMED_OUT_KIND)

    def with_timed_out(self, frame: DataFrame) -> DataFrame:
        """Matches, with `_kind` final, and beginnings that timed out, with `_kind` timed_out."""
        if self.within_us is None:
            raise ConfigError('nothing times out without a limit: within="10 minutes"')
        return self._run(frame, wants_time_outs=True)

    def late(self, frame: DataFrame) -> DataFrame:
        """Late rows. A stream needs `_watermark` for it."""
        from pyspark.sql.functions import lit

        frame, _, time_name = name_columns(show_watermark(frame), self.keys, self.time)
        check_time(frame, time_name)
        time = as_column(time_name)
        marked = frame.withColumn(IS_LATE, with_rule(is_late(frame, time, time), IS_LATE, "time"))
        shown = [as_column(it) for it in frame.columns if it != WATERMARK_COLUMN]
        seconds = lateness(frame, time).alias(LATENESS)
        return marked.where(IS_LATE).select(*shown, lit(LATE).alias(KIND), seconds)

    def _run(self, frame: DataFrame, *, wants_time_outs: bool) -> DataFrame:
        from pyspark.sql.functions import col, count_if

        from millstream.pipelines.state.spark import run_operator

        check_no_kind(frame)
        frame = frame.drop(WATERMARK_COLUMN)
        carried = frame.columns
        frame, keys, time = name_columns(frame, self.keys, self.time)
        check_time(frame, time)
        check_not_aggregated(frame)
        if frame.isStreaming:
            self.check_stream()
            check_watermark(frame, time, "matches would never be final")
        frame, given_order = self._order(frame)
        by_name = [time, *given_order]
        frame, (time, *order) = self._reversed(frame, by_name)
        binding = _Binding(self, frame)
        measures = binding.measures(carried, [*keys, KIND])
        operator = PatternMatch(
            Ordered(binding.schema(keys, time, order, carried), tuple(keys), time, tuple(order),
                    binding.values, self.order == "arrival"),
            self._compiled(binding.code, wants_time_outs),
            Output(
                binding.parts,
                tuple(dict.fromkeys([*carried, *keys])) if self.rows != "one" else (),
                self.rows != "one",
                self.rows != "all omitting empty",
            ),
            self.identity(),
            f"pattern {self.pattern}",
            self.details(),
        )  # fmt: skip
        result = run_operator(operator, {EVENTS: binding.frame}, self.buckets)
        too_long = {TOO_LONG_KIND: count_if(col(KIND) == TOO_LONG_KIND)}
        result = drop_late(result, col(KIND) == LATE, self.lateness, others=too_long)
        shown = keys if self.rows == "one" else list(operator.schema_out.names)
        shown = [it for it in shown if it not in binding.parts and it != KIND]
        ahead = len(shown)
        if self.is_sql:  # PARTITION BY, ORDER BY, measures, all others
            first = list(dict.fromkeys(it for it in (*keys, *by_name) if it in shown))
            ahead = len(first)
            shown = list(dict.fromkeys([*first, *shown]))
        columns = list(map(as_column, shown))
        return result.where(col(KIND) != TOO_LONG_KIND).select(
            *columns[:ahead], *measures, *columns[ahead:], col(KIND)
        )

    def _compiled(self, code: Code, wants_time_outs: bool) -> Compiled:
        always = 1 << len(self.variables) if self.program.has_gap else 0
        for place, (key, condition) in enumerate(
            zip(self.variables, self.conditions, strict=False)
        ):
            if not condition.row_parts and not _is_column(self.given.get(key)):
                always |= 1 << place
        return Compiled(
            self.program,
            code,
            always,
            NO_LIMIT if self.within_us is None else self.within_us,
            self.max_rows,
            self.skip[0],
            wants_unmatched=self.rows == "all with unmatched",
            keeps_always=self.remembers_keys,
            wants_time_outs=wants_time_outs,
        )

    def _order(self, frame: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
        """The columns that decide between rows of the same time, or are the order of arrival."""
        given = self.order_by
        if not given:
            given = tuple(
                name for name in (POSITION_COLUMN, OFFSET_COLUMN) if name in frame.columns
            )[:1]
        if not given and self.order == "arrival":
            raise ConfigError(
                "the order of arrival is not known: name the column _offset in the schema of the "
                'topic, or a column that grows with every row of a key, like order_by="number"'
            )
        names = []
        for it in given:
            frame, name = name_column(frame, it)
            kind = kind_of(frame, name)
            if kind not in _ORDERED:
                raise ConfigError(
                    f"order_by {name} is {kind}: rows are ordered by numbers or times"
                )
            names.append(name)
        return frame, tuple(names)

    def _reversed(self, frame: DataFrame, names: Sequence[str]) -> tuple[DataFrame, list[str]]:
        """The frame and these columns, with others in place of descending ones: they are ascending
        and have the same distances."""
        from pyspark.sql.functions import bitwise_not, timestamp_micros, unix_micros

        found = list(names)
        for place, name in enumerate(names):
            if name not in self.descending:
                continue
            kind, column = kind_of(frame, name), as_column(name)
            if kind in _LONGS:
                column = bitwise_not(column)
            elif kind == "timestamp":
                column = timestamp_micros(-unix_micros(column))
            else:
                raise ConfigError(
                    f"ORDER BY {name} DESC: it is {kind}, and only whole numbers and timestamps "
                    "can be in descending order"
                )
            found[place] = f"_reversed{place}"
            frame = frame.withColumn(found[place], column)
        return frame, found


class _Binding:
    """A pattern and the columns of a frame: what Spark evaluates before and behind the operator."""

    def __init__(self, spec: PatternSpec, frame: DataFrame) -> None:
        from pyspark.sql.functions import expr

        self._spec = spec
        self._given = frame
        self.parts: dict[str, Part] = {}
        texts = list(dict.fromkeys(it.text for it in values_of(spec.conditions)))
        self._names = {text: f"_v{place}" for place, text in enumerate(texts)}
        typed = {}
        kinds = {}
        for text in texts:
            (field,) = self._select(expr(text), text).schema.fields
            typed[self._names[text]], kinds[text] = _as_word(
                expr(text), field.dataType.simpleString(), text
            )
        skip_to = spec.skip_to
        self.code = compile_conditions(spec.conditions, kinds, skip_to, spec.scope.universal)
        self.values = tuple(ValueColumn(self._names[it.text], it.shift) for it in self.code.values)
        self.frame = frame.withColumns({MASK: self._mask(), **typed})

    def _select(self, column: Column, text: str) -> DataFrame:
        from pyspark.errors import AnalysisException

        try:
            return self._given.select(column.alias("_"))
        except AnalysisException as error:
            problem = str(error).split(" SQLSTATE")[0].splitlines()[0]
            raise ConfigError(f"{text}: {problem}") from None

    def _mask(self) -> Column:
        """The bit of each variable whose condition on the row is true."""
        from pyspark.sql.functions import lit, when

        bits = [lit(0).cast("bigint")]
        pairs = zip(self._spec.variables.items(), self._spec.conditions, strict=False)
        for place, ((key, name), condition) in enumerate(pairs):
            column = self._row_condition(key, condition)
            if column is None:
                continue
            (field,) = self._select(column, f"condition of {name}").schema.fields
            if field.dataType.simpleString() not in ("boolean", "void"):
                kind = field.dataType.simpleString()
                raise ConfigError(f"condition of {name}: it is {kind}, and must be true or false")
            bits.append(when(column, lit(1 << place).cast("bigint")).otherwise(lit(0)))
        return reduce(lambda left, right: left.bitwiseOR(right), bits)

    def _row_condition(self, key: str, condition: Condition) -> Column | None:
        from pyspark.sql.functions import expr

        given = self._spec.given.get(key)
        if _is_column(given):
            return given  # type: ignore[return-value]  # checked
        if not condition.row_parts:
            return None
        return expr(" and ".join(f"({part})" for part in condition.row_parts))

    def measures(self, carried: Sequence[str], taken: Sequence[str]) -> list[Column]:
        """The measures, as columns behind the operator."""
        from pyspark.sql.functions import expr

        spec = self._spec
        columns = []
        added: dict[str, Column] = {}
        known = set(taken) | (set(carried) if spec.rows != "one" else set())
        for place, (name, text) in enumerate(spec.measures.items()):
            if name in known:
                raise ConfigError(f"there is a column {name} already: choose another name")
            measure = self._measure(name, text, place)
            for part_name, part in measure.parts.items():
                self.parts[part_name] = self._with_column(part, added)
            columns.append(expr(measure.text).alias(name))
        self.frame = self.frame.withColumns(added) if added else self.frame
        return columns

    def _measure(self, name: str, text: str, place: int) -> MeasureText:
        spec = self._spec
        try:
            return parse_measure(
                text, spec.scope, f"_m{place}", self._given.columns, is_final=spec.rows == "one"
            )
        except ConfigError as error:
            raise ConfigError(f"measure {name}: {error}") from None

    def _with_column(self, part: Part, added: dict[str, Column]) -> Part:
        """The part with the column that it reads, which is added unless the frame has it."""
        from dataclasses import replace

        from pyspark.sql.functions import expr

        if part.text is None:
            return part
        name = part.text.strip("`")
        if name not in self._given.columns:
            name = f"_p{len(added)}"
            self._select(expr(part.text), part.text)
            added[name] = expr(part.text)
        return replace(part, column=name)

    def schema(
        self, keys: Sequence[str], time: str, order: Sequence[str], carried: Sequence[str]
    ) -> Any:
        """The columns that the operator needs. The frame has them alone from now on."""
        from millstream.pipelines.state.spark import arrow_schema

        names = [*keys, time, *order, *(it.column for it in self.parts.values() if it.column)]
        names += [*self._names.values(), MASK]
        if self._spec.rows != "one":
            names += carried
        self.frame = self.frame.select(*map(as_column, dict.fromkeys(names)))
        schema = arrow_schema(self.frame.schema)
        for part in self.parts.values():
            try:
                part.type_in(schema)
            except TypeError as error:
                raise ConfigError(f"there is no {error} in a measure") from None
        return schema


def _is_column(given: object) -> bool:
    from pyspark.sql import Column

    return isinstance(given, Column)


def _as_word(column: Column, kind: str, text: str) -> tuple[Column, str]:
    """A value of 64 bits for the matcher, and its type there."""
    from pyspark.sql.functions import conv, sha2, substring, unix_date, unix_micros

    if kind in _LONGS:
        return column.cast("bigint"), "long"
    if kind in ("float", "double") or kind.startswith("decimal"):
        return column.cast("double"), "double"
    if kind == "boolean":
        return column.cast("bigint"), "boolean"
    if kind == "timestamp":
        return unix_micros(column), "timestamp"
    if kind == "date":
        return unix_date(column).cast("bigint"), "date"
    if kind == "string":
        digest = substring(sha2(column.cast("binary"), 256), 1, 15)
        return conv(digest, 16, 10).cast("bigint"), "string"
    raise ConfigError(
        f"{text} is {kind}, which conditions on other rows of a match cannot read: cast it to a "
        "number, a string or a timestamp"
    )


def match(
    pattern: str,
    *,
    time: str | Column,
    key: str | Column | Sequence[str | Column] = (),
    where: Mapping[str, str | Column] | None = None,
    within: Duration | None = None,
    skip: str = "past last row",
    rows: RowsPerMatch = "one",
    order: RowOrder = "time",
    order_by: str | Column | Sequence[str | Column] = (),
    subsets: Mapping[str, Sequence[str]] | None = None,
    max_rows: int | None = None,
    stragglers: DropOrDivert = "drop",
    buckets: int = 16,
    count_as: str | None = None,
    **measures: str,
) -> Pattern:
    """Matches of a pattern; see the head of this module. Raises `ConfigError`.

    A stream needs a watermark on `time`, and `_watermark` for `late`.
    """
    return Pattern(
        pattern,
        where or {},
        tuple(listed(key)),
        time,
        measures,
        None if within is None else duration_us(within, "within"),
        skip,
        rows,
        tuple(listed(order_by)),
        subsets or {},
        (NO_LIMIT if within is None else MAX_ROWS) if max_rows is None else max_rows,
        Lateness.of(stragglers, None, count_as or f"late.pattern {pattern}", DropOrDivert),
        buckets,
        order,
    )
