"""Runs MATCH_RECOGNIZE texts over a few rows without Spark: DuckDB evaluates what Spark would."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from millstream.errors import ConfigError
from millstream.pipelines.patterns import Pattern, recognize
from millstream.pipelines.patterns.conditions import compile_conditions, label_bits, values_of
from millstream.pipelines.patterns.matching import Ordered, Output, PatternMatch, ValueColumn
from millstream.pipelines.patterns.measures import parse_measure
from millstream.pipelines.state.trial import Trial

TIME = "_at"
KINDS = {"INTEGER": "long", "BIGINT": "long", "BOOLEAN": "boolean", "VARCHAR": "string"}


class SqlBatch:
    """A pattern and rows, whose columns are integers or strings. The first column of ORDER BY, an
    integer, is the time in microseconds."""

    def __init__(self, text: str | Pattern, rows: Sequence[Mapping[str, Any]]) -> None:
        self._spec = recognize(text) if isinstance(text, str) else text
        self._columns = list(rows[0])
        self._table = pa.Table.from_pylist(list(rows))
        self._added: dict[str, pa.Array] = {}
        self._measures: dict[str, str] = {}
        self.operator = self._operator()

    def rows(self) -> pa.RecordBatch:
        """The input of the operator, in the given order."""
        arrays = [*self._table.columns, *self._added.values()]
        return pa.RecordBatch.from_arrays(
            [
                pa.concat_arrays(it.chunks) if isinstance(it, pa.ChunkedArray) else it
                for it in arrays
            ],
            schema=self.operator.inputs["events"].schema,
        )

    def results(self) -> list[dict[str, Any]]:
        """Of all rows at once."""
        trial = Trial(self.operator)
        found = [trial.feed({"events": self.rows()}), trial.finish()]
        return self.shown(found)

    def shown(self, found: Sequence[pa.RecordBatch]) -> list[dict[str, Any]]:
        """What a user would see of the operator's output."""
        out = pa.Table.from_batches(found)
        names = list(map(str, self._spec.keys if self._spec.rows == "one" else self._columns))
        chosen = [f'"{name}"' for name in names]
        chosen += [
            f'{text.replace("`", chr(34))} AS "{name}"' for name, text in self._measures.items()
        ]
        rows: list[dict[str, Any]] = self._query(
            f"SELECT {', '.join(chosen)} FROM out", out
        ).to_pylist()
        return rows

    def _operator(self) -> PatternMatch:
        spec = self._spec
        kinds, values = {}, {}
        for text in dict.fromkeys(it.text for it in values_of(spec.conditions)):
            kinds[text], column = self._word(text)
            values[text] = name = f"_v{len(values)}"
            self._added[name] = column
        code = compile_conditions(spec.conditions, kinds, spec.skip_to, spec.scope.universal)
        self._added["_mask"] = self._mask()
        self._added[TIME] = self._evaluate(str(spec.time)).cast(pa.timestamp("us", tz="UTC"))
        parts = {}
        for place, (name, text) in enumerate(spec.measures.items()):
            parsed = parse_measure(
                text, spec.scope, f"_m{place}", self._columns, is_final=spec.rows == "one"
            )
            self._measures[name] = parsed.text
            for part_name, part in parsed.parts.items():
                if part.text is not None:
                    column = f"_p{len(self._added)}"
                    self._added[column] = self._evaluate(part.text)
                    part = replace(part, column=column)
                parts[part_name] = part
        fields = [*self._table.schema, *(pa.field(n, it.type) for n, it in self._added.items())]
        ordered = Ordered(
            pa.schema(fields), tuple(map(str, spec.keys)), TIME, tuple(map(str, spec.order_by)),
            tuple(ValueColumn(values[it.text], it.shift) for it in code.values),
            spec.order == "arrival",
        )  # fmt: skip
        shows_rows = spec.rows != "one"
        output = Output(
            parts, tuple(self._columns) if shows_rows else (), shows_rows,
            spec.rows != "all omitting empty",
        )  # fmt: skip
        return PatternMatch(ordered, spec._compiled(code, False), output, "test")

    def _mask(self) -> pa.Array:
        mask = np.zeros(self._table.num_rows, np.int64)
        for place, condition in enumerate(self._spec.conditions):
            if condition.row_parts:
                text = " and ".join(condition.row_parts)
                is_true = self._evaluate(f"coalesce({text}, false)").to_numpy(zero_copy_only=False)
                mask |= is_true.astype(np.int64) << place
        return pa.array(mask)

    def _word(self, text: str) -> tuple[str, pa.Array]:
        (kind,) = self._query(f"SELECT any_value(typeof({text})) FROM t", self._table).column(0)
        column = self._evaluate(text)
        if kind.as_py() == "VARCHAR":
            hashed = [None if it is None else label_bits(it) for it in column.to_pylist()]
            return "string", pa.array(hashed, pa.int64())
        if kind.as_py() not in KINDS:
            return "double", column.cast(pa.float64())
        return KINDS[kind.as_py()], column.cast(pa.int64())

    def _evaluate(self, text: str) -> pa.Array:
        found = self._query(f"SELECT {text} AS it FROM t", self._table).column("it")
        return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found

    @staticmethod
    def _query(text: str, table: pa.Table) -> pa.Table:
        with duckdb.connect(config={"threads": 1}) as connection:
            connection.register("t", table)
            connection.register("out", table)
            try:
                return connection.sql(text).to_arrow_table()
            except duckdb.Error as error:
                raise ConfigError(f"{text}: {error}") from error


def run_sql(text: str, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rows of a MATCH_RECOGNIZE text."""
    return SqlBatch(text, rows).results()
