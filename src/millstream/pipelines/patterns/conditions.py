"""The conditions of variables: what Spark evaluates, and what the matcher does.

A condition is split at its ANDs. A part that reads only the row under test is left to Spark, whole,
as text; all such parts of a variable become one bit of a mask. The other parts are compiled for the
matcher (`_matcher.pyx`), to operations on a stack:

    values      expressions of one row, computed by Spark as columns, maybe of a neighbour row: PREV
                and NEXT shift the column
    registers   what a match so far contains: counts, sums, first and last values of variables. Each
                thread of the matcher has its own, so a condition never looks back at rows

Conditions see the row under test as already taken. Values are 64 bits wide: whole numbers, doubles,
times and intervals in microseconds, booleans, and strings as 63 bits of their SHA-256, which can be
compared for equality only.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import NamedTuple, TypeAlias

from millstream.errors import ConfigError
from millstream.pipelines.durations import duration_us
from millstream.pipelines.patterns.expressions import (
    Node,
    parse_expression,
    reads_match,
    row_text,
    splice,
    walk,
)
from millstream.pipelines.patterns.language import PatternError

REGISTERS_MAX = 60

# Registers and operations, in the order of `_matcher.pyx`.
(
    COUNT_ROWS, COUNT_VALUES, SUM_LONG, SUM_DOUBLE, SUM_LONG_AS_DOUBLE,
    MIN_LONG, MIN_DOUBLE, MAX_LONG, MAX_DOUBLE, FIRST_VALUE, LAST_VALUE, EARLIER_VALUE,
    FIRST_ROW, LAST_ROW,
) = range(14)  # fmt: skip
(
    CONSTANT, NULL_CONSTANT, VALUE, REGISTER, TO_DOUBLE,
    ADD_LONG, SUB_LONG, MUL_LONG, ADD_DOUBLE, SUB_DOUBLE, MUL_DOUBLE, DIV_DOUBLE,
    NEG_LONG, NEG_DOUBLE, ABS_LONG, ABS_DOUBLE,
    EQ_LONG, LT_LONG, LE_LONG, EQ_DOUBLE, LT_DOUBLE, LE_DOUBLE, SAME_LONG, SAME_DOUBLE,
    AND, OR, NOT, IS_NULL, COALESCE,
) = range(29)  # fmt: skip

LABEL = -1  # in place of the number of a value: what classifier() is for the row

Kind: TypeAlias = str  # long, double, boolean, string, timestamp, date, interval or null
STACK_MAX = 200


class Value(NamedTuple):
    """An expression of a row, as text; of the row `shift` before, if that is positive."""

    text: str
    shift: int = 0


@dataclass(frozen=True)
class Reading:
    """What a condition reads of the match: `function` is count, sum, avg, min, max, first, last,
    or first_label or last_label, of classifier()."""

    function: str
    variables: int
    value: Value | None  # None for count of rows, and for labels
    depth: int = 0
    before: int | None = None  # of a label: that of the row so many rows before


@dataclass(frozen=True)
class Tree:
    """A condition, or a part: `leaf` for values, readings and constants, or operands."""

    operation: str
    place: int
    operands: tuple[Tree, ...] = ()
    leaf: Value | Reading | tuple[Kind, int] | None = None


@dataclass(frozen=True)
class Condition:
    """The condition of a variable, split. `row_parts` are for Spark, in parentheses."""

    text: str
    row_parts: tuple[str, ...] = ()
    match_parts: tuple[Tree, ...] = ()

    @property
    def kind(self) -> str:
        """What it reads, for `explain`."""
        leaves = [it for part in self.match_parts for it in _leaves(part)]
        if any(isinstance(it, Reading) for it in leaves):
            return "reads the match"
        return "reads neighbour rows" if self.match_parts else "reads the row"


@dataclass(frozen=True)
class Scope:
    """The variables of a pattern: their bits by key, with subsets; `universal` are all."""

    bits: Mapping[str, int]
    universal: int
    names: Mapping[str, str] = field(default_factory=dict)  # as classifier() returns them


@dataclass(frozen=True)
class Code:
    """Compiled conditions: the operations of each variable as a range, and the registers."""

    ranges: tuple[tuple[int, int], ...]
    operations: tuple[tuple[int, int], ...]
    registers: tuple[tuple[int, int, int, int, int], ...]
    values: tuple[Value, ...]
    skip_register: int = -1


def parse_condition(text: str, own: str, scope: Scope) -> Condition:
    """The condition of the variable with the key `own`. Raises `PatternError`."""
    if not reads_match(text, scope.bits):
        return Condition(text, (text,))
    parser = _Lowering(text, own, scope)
    row_parts, match_parts = [], []
    for part in _conjuncts(parse_expression(text, scope.bits)):
        if parser.is_of_row(part):
            row_parts.append(parser.text_of(part))
        else:
            match_parts.append(parser.lower(part))
    return Condition(text, tuple(row_parts), tuple(match_parts))


def values_of(conditions: Sequence[Condition]) -> list[Value]:
    """All values that conditions read, each once."""
    found: dict[Value, None] = {}
    for condition in conditions:
        for part in condition.match_parts:
            for leaf in _leaves(part):
                value = leaf.value if isinstance(leaf, Reading) else leaf
                if isinstance(value, Value):
                    found.setdefault(value)
    return list(found)


def compile_conditions(
    conditions: Sequence[Condition],
    kinds: Mapping[str, Kind],
    skip_to: tuple[str, int] | None = None,
    universal: int = 0,
) -> Code:
    """Code for all variables. `kinds` are the types of values by text; `skip_to` is first or last,
    and the bits of the variable whose row the matcher needs to know; `universal` are the bits of
    all variables. Raises `PatternError`."""
    compiler = _Compiler(values_of(conditions), kinds, universal)
    ranges = []
    for condition in conditions:
        begin = len(compiler.operations)
        for number, part in enumerate(condition.match_parts):
            if compiler.emit(part, condition.text) not in ("boolean", "null"):
                raise PatternError("a condition must be true or false", condition.text, part.place)
            if number:
                compiler.operations.append((AND, 0))
        ranges.append((begin, len(compiler.operations)))
    skip_register = -1
    if skip_to is not None:
        kind = FIRST_ROW if skip_to[0] == "first" else LAST_ROW
        skip_register = compiler.register((kind, skip_to[1], 0, 0, 0))
    return Code(
        tuple(ranges),
        tuple(compiler.operations),
        tuple(compiler.registers),
        tuple(compiler.values),
        skip_register,
    )


def _conjuncts(node: Node) -> list[Node]:
    if node.kind == "and" and node.name != "between":
        return [part for it in node.args for part in _conjuncts(it)]
    return [node]


def _leaves(tree: Tree) -> list[Value | Reading]:
    if isinstance(tree.leaf, Value | Reading):
        return [tree.leaf]
    return [leaf for it in tree.operands for leaf in _leaves(it)]


class _Lowering:
    """Turns the tree of a condition into values, readings and operations on them."""

    def __init__(self, text: str, own: str, scope: Scope) -> None:
        self._text = text
        self._own = own
        self._scope = scope

    def is_of_row(self, node: Node) -> bool:
        """Whether the expression reads only the row under test."""
        if node.kind == "member":
            return node.variable == self._own
        if node.kind in ("navigate", "aggregate", "match_number", "rows"):
            return False
        if node.kind == "classifier":
            return node.variable in (None, self._own)
        return all(map(self.is_of_row, node.args))

    def text_of(self, node: Node) -> str:
        """The expression for Spark, in parentheses."""
        name = self._scope.names.get(self._own, self._own).replace("'", "\\'")
        classifiers = [
            (it.start, it.end, f"'{name}'") for it in walk(node) if it.kind == "classifier"
        ]
        return f"({splice(self._text, node, classifiers)})"

    def lower(self, node: Node) -> Tree:
        if node.kind == "literal":
            constant = _constant(self._text[node.start : node.end])
            if constant is not None:
                return Tree("constant", node.start, leaf=constant)
        if node.kind == "negative" and node.args[0].kind == "literal":
            return Tree("negative", node.start, (self.lower(node.args[0]),))
        if node.kind == "interval":
            return Tree("constant", node.start, leaf=("interval", self._interval_us(node)))
        if node.kind == "group":
            return self.lower(node.args[0])
        if self.is_of_row(node):
            return Tree("value", node.start, leaf=Value(self.text_of(node)))
        if node.kind == "classifier":
            return self._reading(node, "last", node, 0)
        if node.kind == "other" and node.name == "in":
            value, *among = map(self.lower, node.args)
            return reduce(
                lambda x, y: Tree("or", node.start, (x, y)),
                [Tree("=", node.start, (value, it)) for it in among],
            )
        if node.kind == "member":
            return self._reading(node, "last", node, 0)
        if node.kind == "navigate":
            return self._navigation(node)
        if node.kind == "match_number":
            raise PatternError(
                "a condition cannot read match_number(): a row is tested for a match before it is "
                "known how many earlier ones there are. Use it in a measure, and filter the "
                "matches by that",
                self._text,
                node.start,
            )
        if node.is_distinct and node.name not in ("min", "max"):
            raise PatternError(
                f"{node.name} of distinct values in a condition: each unfinished match would need "
                "all its values. Measures can have it",
                self._text,
                node.start,
            )
        if node.kind == "aggregate" and node.name != "array_agg":
            return self._reading(node, node.name, node.args[0], 0)
        if node.kind in ("and", "or", "not", "negative", "is_null", "is_not_null"):
            return Tree(node.kind, node.start, tuple(map(self.lower, node.args)))
        if node.kind in ("compare", "arithmetic"):
            return Tree(node.name, node.start, tuple(map(self.lower, node.args)))
        if node.kind == "positive":
            return self.lower(node.args[0])
        if node.kind == "other" and node.name == "abs" and len(node.args) == 1:
            return Tree("abs", node.start, (self.lower(node.args[0]),))
        if node.kind == "other" and node.name == "coalesce" and node.args:
            lowered = map(self.lower, node.args)
            return reduce(lambda x, y: Tree("coalesce", node.start, (x, y)), lowered)
        name = node.name or node.kind
        raise PatternError(
            f"{name} cannot read the match in a condition: comparisons, + - * /, AND, OR, NOT, IN, "
            "IS NULL, BETWEEN, abs() and coalesce() can. Put it around a column, inside FIRST or "
            "LAST",
            self._text,
            node.start,
        )

    def _interval_us(self, node: Node) -> int:
        words = self._text[node.start + len("interval") : node.end].replace("'", " ")
        try:
            return duration_us(" ".join(words.split()).lower(), "interval", zero_allowed=True)
        except ConfigError as error:
            raise PatternError(str(error), self._text, node.start) from None

    def _navigation(self, node: Node) -> Tree:
        inner = node.args[0]
        if node.name in ("first", "last"):
            return self._reading(node, node.name, inner, node.offset)
        shift = node.offset if node.name == "prev" else -node.offset
        if inner.kind == "classifier":
            return self._label(node, "last", inner, 0, shift)
        if inner.kind == "navigate":
            return self._reading(node, inner.name, inner.args[0], inner.offset, shift)
        if self.is_of_row(inner):
            return Tree("value", node.start, leaf=Value(self.text_of(inner), shift))
        return self._reading(node, "last", inner, 0, shift)

    def _reading(self, node: Node, function: str, of: Node, depth: int, shift: int = 0) -> Tree:
        if of.kind == "classifier":
            return self._label(node, function, of, depth, shift)
        if any(it.kind == "classifier" for it in walk(of)):
            raise PatternError(
                "conditions can read classifier() of other rows alone, without a function around "
                "it inside FIRST, LAST or PREV",
                self._text,
                node.start,
            )
        named = {it.variable for it in walk(of) if it.kind in ("member", "rows", "column")}
        (variable,) = named
        bits = self._scope.universal if variable is None else self._scope.bits[variable]
        value = None if of.kind == "rows" else Value(f"({row_text(self._text, of)})", shift)
        is_current = variable in (None, self._own)
        if function == "last" and depth == 0 and is_current and value is not None:
            return Tree("value", node.start, leaf=value)
        return Tree("reading", node.start, leaf=Reading(function, bits, value, depth))

    def _label(self, node: Node, function: str, of: Node, depth: int, shift: int) -> Tree:
        if shift < 0:  # the row after: it has no variable yet
            return Tree("constant", node.start, leaf=("null", 0))
        if function not in ("first", "last") or (shift and (depth or function == "first")):
            raise PatternError(
                "conditions can read classifier() of the first or the last rows of a variable, and "
                "PREV of that of its last row",
                self._text,
                node.start,
            )
        bits = self._scope.universal if of.variable is None else self._scope.bits[of.variable]
        reading = Reading(f"{function}_label", bits, None, depth, shift or None)
        return Tree("reading", node.start, leaf=reading)


def label_bits(name: str) -> int:
    """What classifier() is for a variable, as the value of a string (see `definition.py`)."""
    return int(hashlib.sha256(name.encode()).hexdigest()[:15], 16)


def _constant(text: str) -> tuple[Kind, int] | None:
    """A literal as 64 bits; None for strings, which Spark hashes."""
    word = text.lower()
    if word == "null":
        return "null", 0
    if word in ("true", "false"):
        return "boolean", int(word == "true")
    if text[0] in "'\"":
        return None
    if text.isdecimal():
        return ("long", int(text)) if int(text) < 2**63 else ("double", bits_of(float(text)))
    return "double", bits_of(float(text))


def bits_of(value: float) -> int:
    """The bits of a double, as a signed integer."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


class _Compiler:
    """Emits operations; `emit` returns the type of the result."""

    def __init__(self, values: list[Value], kinds: Mapping[str, Kind], universal: int) -> None:
        self.values = values
        self._universal = universal
        self.operations: list[tuple[int, int]] = []
        self.registers: list[tuple[int, int, int, int, int]] = []
        self._kinds = kinds
        self._depth = 0

    def register(self, wanted: tuple[int, int, int, int, int]) -> int:
        """The number of a register, which is added if it is new."""
        if wanted not in self.registers:
            if len(self.registers) >= REGISTERS_MAX:
                raise ConfigError(
                    f"the conditions read more than {REGISTERS_MAX} values of the match"
                )
            self.registers.append(wanted)
        return self.registers.index(wanted)

    def emit(self, tree: Tree, text: str) -> Kind:
        self._depth += 1
        if self._depth > STACK_MAX:
            raise PatternError("the condition is nested too deeply", text, tree.place)
        try:
            return self._emit(tree, text)
        finally:
            self._depth -= 1

    def _emit(self, tree: Tree, text: str) -> Kind:
        leaf = tree.leaf
        if isinstance(leaf, Value):
            self.operations.append((VALUE, self.values.index(leaf)))
            return self._kinds[leaf.text]
        if isinstance(leaf, Reading):
            return self._read(leaf, text, tree.place)
        if leaf is not None:
            kind, bits = leaf
            self.operations.append((NULL_CONSTANT if kind == "null" else CONSTANT, bits))
            return kind
        operands = [self.emit(it, text) for it in tree.operands]
        try:
            return self._operate(tree.operation, operands)
        except TypeError as error:
            raise PatternError(str(error), text, tree.place) from None

    def _label(self, reading: Reading) -> int:
        """The register of a label. PREV of it was the label of an earlier row when the last row of
        the variable was taken."""
        bits, depth = reading.variables, reading.depth
        if reading.function == "first_label":
            counted = self.register((COUNT_ROWS, bits, 0, 0, 0))
            return self.register((FIRST_VALUE, bits, LABEL, counted, depth))
        if reading.before is None:
            return self._earlier_label(bits, depth)
        of_all = self._earlier_label(self._universal, reading.before - 1)
        return self.register((EARLIER_VALUE, bits, LABEL, of_all, -reading.before))

    def _earlier_label(self, bits: int, depth: int) -> int:
        number = self.register((LAST_VALUE, bits, LABEL, 0, 0))
        for it in range(1, depth + 1):
            number = self.register((EARLIER_VALUE, bits, LABEL, number, it))
        return number

    def _read(self, reading: Reading, text: str, place: int) -> Kind:
        if reading.function.endswith("_label"):
            self._load(self._label(reading))
            return "string"
        if reading.value is None:
            self._load(self.register((COUNT_ROWS, reading.variables, 0, 0, 0)))
            return "long"
        kind = self._kinds[reading.value.text]
        value = self.values.index(reading.value)
        bits = reading.variables
        if reading.function == "count":
            self._load(self.register((COUNT_VALUES, bits, value, 0, 0)))
            return "long"
        if reading.function == "first":
            counted = self.register((COUNT_ROWS, bits, 0, 0, 0))
            self._load(self.register((FIRST_VALUE, bits, value, counted, reading.depth)))
            return kind
        if reading.function == "last":
            number = self.register((LAST_VALUE, bits, value, 0, 0))
            for depth in range(1, reading.depth + 1):
                number = self.register((EARLIER_VALUE, bits, value, number, depth))
            self._load(number)
            return kind
        if reading.function in ("sum", "avg") and kind not in ("long", "double"):
            raise PatternError(f"{reading.function} of a {kind}", text, place)
        if kind in ("string", "boolean"):
            raise PatternError(f"{reading.function} of a {kind} in a condition", text, place)
        return self._aggregate(reading.function, bits, value, kind)

    def _aggregate(self, function: str, bits: int, value: int, kind: Kind) -> Kind:
        is_double = kind == "double"
        if function == "avg":
            summing = SUM_DOUBLE if is_double else SUM_LONG_AS_DOUBLE
            self._load(self.register((summing, bits, value, 0, 0)))
            self._load(self.register((COUNT_VALUES, bits, value, 0, 0)))
            self.operations += [(TO_DOUBLE, 0), (DIV_DOUBLE, 0)]
            return "double"
        chosen = {
            "sum": (SUM_LONG, SUM_DOUBLE),
            "min": (MIN_LONG, MIN_DOUBLE),
            "max": (MAX_LONG, MAX_DOUBLE),
        }[function][is_double]
        self._load(self.register((chosen, bits, value, 0, 0)))
        return kind

    def _load(self, register: int) -> None:
        self.operations.append((REGISTER, register))

    def _operate(self, operation: str, kinds: list[Kind]) -> Kind:
        if operation in ("and", "or", "not"):
            if not {*kinds} <= {"boolean", "null"}:
                raise TypeError(f"{operation.upper()} of a {kinds[-1]}")
            self.operations.append(({"and": AND, "or": OR, "not": NOT}[operation], 0))
            return "boolean"
        if operation in ("is_null", "is_not_null"):
            self.operations.append((IS_NULL, 0))
            if operation == "is_not_null":
                self.operations.append((NOT, 0))
            return "boolean"
        if operation in ("negative", "abs"):
            if kinds[0] not in ("long", "double", "interval", "null"):
                raise TypeError(f"a {kinds[0]} has no sign")
            is_double = kinds[0] == "double"
            chosen = ((NEG_LONG, NEG_DOUBLE), (ABS_LONG, ABS_DOUBLE))[operation == "abs"]
            self.operations.append((chosen[is_double], 0))
            return kinds[0]
        if operation == "coalesce":
            return self._coalesce(kinds)
        if operation in "+-*/":
            return self._calculate(operation, kinds)
        return self._compare(operation, kinds)

    def _coalesce(self, kinds: list[Kind]) -> Kind:
        left, right = kinds
        result = right if left == "null" else left
        if "double" in kinds:
            self._as_doubles("coalesce", kinds)
            result = "double"
        elif left != right and "null" not in kinds:
            raise TypeError(f"coalesce of a {left} and a {right}: cast one of them")
        self.operations.append((COALESCE, 0))
        return result

    def _calculate(self, operation: str, kinds: list[Kind]) -> Kind:
        left, right = kinds
        if operation == "/" or "double" in kinds:
            self._as_doubles(operation, kinds)
            names = {"+": ADD_DOUBLE, "-": SUB_DOUBLE, "*": MUL_DOUBLE, "/": DIV_DOUBLE}
            self.operations.append((names[operation], 0))
            return "double"
        result = _RESULTS.get((left, operation, right))
        if "null" in kinds:
            result = left if right == "null" else right
        if result is None:
            raise TypeError(f"{left} {operation} {right}")
        self.operations.append(({"+": ADD_LONG, "-": SUB_LONG, "*": MUL_LONG}[operation], 0))
        return result

    def _as_doubles(self, operation: str, kinds: list[Kind]) -> None:
        left, right = kinds
        if not {*kinds} <= {"long", "double", "null"}:
            raise TypeError(f"{left} {operation} {right}")
        if left == "long":
            self.operations.append((TO_DOUBLE, 1))
        if right == "long":
            self.operations.append((TO_DOUBLE, 0))

    def _compare(self, operation: str, kinds: list[Kind]) -> Kind:
        left, right = kinds
        is_number = {*kinds} <= {"long", "double", "null"}
        if left != right and not is_number and "null" not in kinds:
            raise TypeError(f"a {left} compared with a {right}: cast one of them")
        if "string" in kinds and operation not in ("=", "<>", "<=>"):
            raise TypeError("strings of other rows of the match can be compared with = and <> only")
        is_double = "double" in kinds
        if is_double:
            self._as_doubles(operation, kinds)
        equal, less, at_most, same = (
            (EQ_DOUBLE, LT_DOUBLE, LE_DOUBLE, SAME_DOUBLE)
            if is_double
            else (EQ_LONG, LT_LONG, LE_LONG, SAME_LONG)
        )
        code, is_negated = {
            "=": (equal, False),
            "<>": (equal, True),
            "<": (less, False),
            "<=": (at_most, False),
            ">": (at_most, True),
            ">=": (less, True),
            "<=>": (same, False),
        }[operation]
        self.operations.append((code, 0))
        if is_negated:
            self.operations.append((NOT, 0))
        return "boolean"


_RESULTS = {
    ("long", "+", "long"): "long",
    ("long", "-", "long"): "long",
    ("long", "*", "long"): "long",
    ("timestamp", "-", "timestamp"): "interval",
    ("timestamp", "-", "interval"): "timestamp",
    ("timestamp", "+", "interval"): "timestamp",
    ("interval", "+", "timestamp"): "timestamp",
    ("interval", "+", "interval"): "interval",
    ("interval", "-", "interval"): "interval",
    ("interval", "*", "long"): "interval",
    ("long", "*", "interval"): "interval",
}
