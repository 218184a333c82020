"""Measures: what a match yields, as columns.

A measure is an expression of SQL. The parts that read the match are replaced by columns, which the
operator computes for all matches at once; Spark evaluates the rest behind it, with its own types:

    "max(b.price) - first(a.price)"    ->    `_m0` - `_m1`

The operator finds, for each row of the output, the row that a part reads, or the range of rows that
an aggregate has. In the output of one row per match that is the whole match. In the output of all
rows it is the match so far, unless the part is FINAL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipelines.joins.matching import take_or_null
from millstream.pipelines.patterns._matcher import EXCLUDED
from millstream.pipelines.patterns.conditions import Scope
from millstream.pipelines.patterns.expressions import (
    Node,
    parse_expression,
    row_text,
    splice,
    walk,
)
from millstream.pipelines.patterns.language import PatternError
from millstream.pipelines.state.keys import Numbers
from millstream.pipelines.state.tables import expand
from millstream.pipelines.windows.ranges import aggregate, result_type

LEAVES = ("column", "member", "navigate", "aggregate", "classifier", "match_number")


def shifted_name(name: str, shift: int) -> str:
    """The name of a column of the row `shift` before, where it is stored with a row."""
    return f"{name}@{shift}" if shift else name


@dataclass(frozen=True)
class Part:
    """A part of a measure that reads the match. `text` is an expression of one row for Spark, and
    `column` its name in the rows; None for classifiers, numbers and counts of rows."""

    function: str  # first, last, classifier, match_number, or an aggregate
    variables: int
    text: str | None = None
    depth: int = 0
    shift: int = 0
    is_final: bool = False
    column: str | None = None
    is_distinct: bool = False

    @property
    def stored(self) -> str:
        """The column of stored rows that has the value: PREV reads one of the row itself."""
        assert self.column is not None
        return shifted_name(self.column, max(self.shift, 0))

    def type_in(self, schema: pa.Schema) -> pa.DataType:
        """The type of its result; raises `TypeError` if it cannot be aggregated."""
        if self.function == "match_number":
            return pa.int64()
        if self.function == "array_agg":
            if self.is_distinct and self.column is None:
                raise TypeError("array_agg of distinct variables")
            inner = pa.string() if self.column is None else schema.field(self.column).type
            return pa.list_(inner)
        if self.column is None:
            return pa.int64() if self.function == "count" else pa.string()
        of = schema.field(self.column).type
        if self.is_distinct and pa.types.is_nested(of):
            raise TypeError(f"{self.function} of distinct values of type {of}")
        return of if self.function in ("first", "last") else result_type(self.function, of)


@dataclass(frozen=True)
class MeasureText:
    """A measure: the text for Spark behind the operator, and its parts by name."""

    text: str
    parts: Mapping[str, Part]


def parse_measure(
    text: str, scope: Scope, prefix: str, columns: Sequence[str], *, is_final: bool
) -> MeasureText:
    """`columns` are the names of columns of the rows; parts are named `prefix` and a number.
    `is_final` is what parts without FINAL or RUNNING are. Raises `PatternError`."""
    known = {name.lower() for name in columns}
    root = parse_expression(text, scope.bits)
    parts: dict[str, Part] = {}
    replaced = []
    for node in _outermost(root):
        if node.kind == "column" and node.name.split(".")[0].lower() not in known:
            raise PatternError(
                f"there is no column {node.name!r}, and no variable", text, node.start
            )
        name = f"{prefix}_{len(parts)}"
        parts[name] = _part(node, text, scope, is_final)
        replaced.append((node.start, node.end, f"`{name}`"))
    return MeasureText(splice(text, root, replaced), parts)


def _outermost(node: Node) -> list[Node]:
    if node.kind in LEAVES:
        return [node]
    return [leaf for it in node.args for leaf in _outermost(it)]


def _part(node: Node, text: str, scope: Scope, default: bool) -> Part:
    if node.kind == "match_number":
        return Part("match_number", scope.universal)
    is_final = default if node.is_final is None else node.is_final
    function, depth, shift, of = "last", 0, 0, node
    if node.kind == "navigate" and node.name in ("prev", "next"):
        shift = node.offset if node.name == "prev" else -node.offset
        of = node.args[0]
        if of.is_final is not None:
            is_final = of.is_final
        if of.kind == "navigate":
            function, depth, of = of.name, of.offset, of.args[0]
    elif node.kind == "navigate":
        function, depth, of = node.name, node.offset, node.args[0]
    elif node.kind == "aggregate":
        function, of = node.name, node.args[0]
    variable = next((it.variable for it in walk(of) if it.variable is not None), None)
    bits = scope.universal if variable is None else scope.bits[variable]
    if of.kind == "rows":
        return Part("count", bits, is_final=is_final)
    if of.kind == "classifier" and function == "array_agg":
        return Part(function, bits, is_final=is_final)
    if of.kind == "classifier":
        if function not in ("first", "last"):
            raise PatternError(f"{function} of classifier()", text, node.start)
        return Part(f"classifier_{function}", bits, None, depth, shift, is_final)
    return Part(
        function, bits, row_text(text, of), depth, shift, is_final, is_distinct=node.is_distinct
    )


@dataclass(frozen=True)
class Matches:
    """Matches in rows that are sorted by key and number: ranges of rows, the variable of each of
    their rows (one range after another), and their numbers. `key_begin` and `key_end` are the rows
    of the key of each match."""

    first: Numbers
    end: Numbers
    labels: npt.NDArray[np.uint8]
    numbers: Numbers
    key_begin: Numbers
    key_end: Numbers

    @property
    def offsets(self) -> Numbers:
        """Where the labels of each match begin."""
        return np.concatenate([[0], np.cumsum(self.end - self.first)])


class Evaluation:
    """Evaluates parts for rows of output. `match` is the match of each; `upto` the place in
    `labels` behind the last row that running parts see. Rows are those of the match."""

    def __init__(
        self, rows: pa.RecordBatch, matches: Matches, match: Numbers, upto: Numbers,
        names: Sequence[str],
    ) -> None:  # fmt: skip
        self._rows = rows
        self._matches = matches
        self._match = match
        self._upto = upto
        self._names = pa.array([*names], pa.string())
        offsets = matches.offsets
        self._begin = offsets[match]
        self._last = offsets[match + 1]
        lengths = matches.end - matches.first
        # the row of each label
        self._row_of = np.arange(len(matches.labels)) + np.repeat(
            matches.first - offsets[:-1], lengths
        )
        self._row_of = np.append(self._row_of, 0)  # so that index 0 exists
        self._variable = (matches.labels & np.uint8(EXCLUDED - 1)).astype(np.int64)

    def column(self, part: Part) -> pa.Array:
        if part.function == "match_number":
            return pa.array(self._matches.numbers[self._match])
        until = self._last if part.is_final else self._upto
        is_member = (part.variables >> self._variable) & 1 == 1
        members = np.flatnonzero(is_member)
        before = np.concatenate([[0], np.cumsum(is_member)])
        first, end = before[self._begin], before[until]
        if part.function in ("first", "last", "classifier_first", "classifier_last"):
            return self._navigate(part, members, first, end)
        if part.is_distinct:
            members, first, end = self._distinct(part, members, first, end)
        if part.function == "array_agg":
            return self._lists(part, members, first, end)
        if part.column is None:
            return pa.array(end - first)
        values = self._rows.column(part.column).take(pa.array(self._row_of[members]))
        return aggregate(part.function, values, first, end)

    def _distinct(
        self, part: Part, members: Numbers, first: Numbers, end: Numbers
    ) -> tuple[Numbers, Numbers, Numbers]:
        """Of each range, the first row of each value; null is one. Ranges follow each other."""
        members = members[expand(first, end - first)]
        ranges = np.repeat(np.arange(len(first)), end - first)
        column = self._rows.column(str(part.column)).take(pa.array(self._row_of[members]))
        if pa.types.is_floating(column.type):
            column = pc.add(column, pa.scalar(0.0, column.type))  # -0.0 becomes 0.0
        values = column.dictionary_encode(null_encoding="encode").indices.to_numpy()
        order = np.lexsort((values, ranges))  # stable: of equal values, the first row comes first
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = np.diff(ranges[order]).astype(bool) | np.diff(values[order]).astype(bool)
        kept = np.sort(order[is_new])
        ends = np.searchsorted(ranges[kept], np.arange(len(first)), side="right")
        return members[kept], np.concatenate([[0], ends[:-1]]), ends

    def _lists(self, part: Part, members: Numbers, first: Numbers, end: Numbers) -> pa.Array:
        """The values of each range, with nulls, as in the standard; null for an empty one."""
        taken = members[expand(first, end - first)]
        offsets = np.concatenate([[0], np.cumsum(end - first)]).astype(np.int32)
        if part.column is None:
            values = self._names.take(pa.array(self._variable[taken]))
        else:
            values = self._rows.column(part.column).take(pa.array(self._row_of[taken]))
        is_empty = pa.array(end == first)
        return pa.ListArray.from_arrays(pa.array(offsets), values, mask=is_empty)

    def _navigate(self, part: Part, members: Numbers, first: Numbers, end: Numbers) -> pa.Array:
        is_first = part.function.endswith("first")
        place = first + part.depth if is_first else end - 1 - part.depth
        is_found = (place >= first) & (place < end)
        label = np.full(len(place), -1, np.int64)
        label[is_found] = members[place[is_found]]
        if part.function.startswith("classifier"):
            label = np.where(is_found, label - part.shift, -1)
            is_found = (label >= self._begin) & (label < self._last)
            variable = np.full(len(label), -1, np.int64)
            variable[is_found] = self._variable[label[is_found]]
            return take_or_null(self._names, variable)
        after = max(-part.shift, 0)
        row = np.where(is_found, self._row_of[np.maximum(label, 0)] + after, -1)
        is_inside = (row >= self._matches.key_begin[self._match]) & (
            row < self._matches.key_end[self._match]
        )
        return take_or_null(self._rows.column(part.stored), np.where(is_inside, row, -1))
