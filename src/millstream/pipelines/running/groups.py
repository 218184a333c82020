"""The rows of an aggregate that still changes: what of them is fixed for a group, and what may go.

In update mode, Spark emits the new row of each group that a batch has changed, and never that an
earlier row is gone. So the output is the result of the batch only if the plan above the aggregate
emits a row for a group always or never, and if the key of the output is fixed for the group.

    groupBy("user").count()                    `user` is fixed, `count` is not
    where("count > 1")                         the row of a group may go
    where("user <> 'bob'")                     it is there always, or never
    case when count > 1 then struct(...) end   a struct that may be null: the output filters these

A column is described by a `Value`, which is derived from the expressions of the plan. An operator
that is not known here may leave out rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from millstream.pipelines.plans import AGGREGATE, JOIN, items, streaming_operators

COLUMN = "AttributeReference"
WINDOW = "spark.timeWindow"  # Spark's metadata of a window: its start determines its end
CURRENT = {"CurrentTimestamp", "CurrentDate", "CurrentTime", "LocalTimestamp", "Now"}
WHOLE_NUMBERS = ("byte", "short", "integer", "long")
# The texts of different values differ. Those of a timestamp may not, when clocks are put back.
EXACT_TEXTS = {*WHOLE_NUMBERS, "boolean", "date", "string", "timestamp_ntz"}
UTC = {"UTC", "Etc/UTC", "Z", "GMT", "+00:00"}
SAME_ROWS = {
    "CollectMetrics",
    "EventTimeWatermark",
    "RebalancePartitions",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "SubqueryAlias",
    "View",
}


@dataclass(frozen=True)
class Value:
    """A column, or another expression, in the rows of a group."""

    is_fixed: bool = False  # whether it is the same whenever a row of the group is emitted
    parts: frozenset[str] = frozenset()  # of the grouping columns: those that it determines
    is_null_fixed: bool = False  # whether it is null always, or never
    fields: tuple[Value, ...] = ()  # of a struct, if they are known


CHANGING = Value()
Columns: TypeAlias = dict[int, Value]  # by Spark's id of the column


@dataclass(frozen=True)
class Groups:
    """The rows of an aggregate behind some operators of its plan."""

    columns: Columns
    parts: Mapping[str, str]  # what the groups differ in: the names of the grouping columns
    removals: tuple[str, ...] = ()  # the operators by which rows of a group may go

    def lacking(self, key: Iterable[Value]) -> list[str]:
        """The grouping columns that a key does not determine."""
        found = _parts(key)
        return list(dict.fromkeys(name for it, name in self.parts.items() if it not in found))


def find_groups(plan: Any) -> list[Groups]:
    """The rows of the aggregates of a stream as the plan emits them: several for a union."""
    if AGGREGATE not in streaming_operators(plan):
        return []
    name, children = str(plan.nodeName()), items(plan.children())
    if name == AGGREGATE:
        return [_aggregated(plan)]
    if name == "Union":
        return [
            replace(it, columns=_renamed(it.columns, child, plan))
            for child in children
            for it in find_groups(child)
        ]
    if name == JOIN:
        return _joined(plan, children)
    above = _OPERATORS.get(name, _unknown)
    return [above(plan, it) for child in children for it in find_groups(child)]


def _aggregated(plan: Any) -> Groups:
    grouping = [
        (it, _group_value(str(number), it))
        for number, it in enumerate(items(plan.groupingExpressions()))
    ]

    def given(expression: Any) -> Value | None:
        return next((value for it, value in grouping if expression.semanticEquals(it)), None)

    results = items(plan.aggregateExpressions())
    columns = {it.exprId().id(): _value(it, {}, given) for it in results}
    parts = {part: _name(it, results) for it, value in grouping for part in sorted(value.parts)}
    return Groups(columns, parts)


def _name(grouped: Any, results: Sequence[Any]) -> str:
    for it in results:
        if grouped.semanticEquals(it.child() if it.nodeName() == "Alias" else it):
            return str(it.name())
    return str(grouped.sql())


def _group_value(part: str, grouped: Any) -> Value:
    """A column that rows are grouped by. A window is determined by its start, or its end; another
    struct by all of its fields."""
    kind = grouped.dataType()
    whole = Value(True, frozenset([part]), True)
    if kind.typeName() != "struct":
        return whole
    names = kind.fieldNames()
    if grouped.nodeName() == COLUMN and grouped.metadata().contains(WINDOW):
        return replace(whole, fields=(whole,) * len(names))
    fields = tuple(Value(True, frozenset([f"{part}.{it}"]), True) for it in range(len(names)))
    return replace(whole, parts=_parts(fields), fields=fields)


def _projected(plan: Any, below: Groups) -> Groups:
    expressions = items(plan.projectList())
    return replace(
        below, columns={it.exprId().id(): _value(it, below.columns) for it in expressions}
    )


def _filtered(plan: Any, below: Groups) -> Groups:
    if _value(plan.condition(), below.columns).is_fixed:
        return below
    return _with_removal(below, "filters an aggregate by a value that changes")


def _exploded(plan: Any, below: Groups) -> Groups:
    made = replace(_value(plan.generator(), below.columns), parts=frozenset(), fields=())
    columns = {it.exprId().id(): made for it in items(plan.generatorOutput())}
    found = replace(below, columns=below.columns | columns)
    if made.is_fixed:
        return found
    return _with_removal(found, "explodes a value of an aggregate that changes")


def _expanded(plan: Any, below: Groups) -> Groups:
    """Several rows for each one, as `unpivot` makes them."""
    rows = [[_value(it, below.columns) for it in items(row)] for row in items(plan.projections())]
    columns = zip(items(plan.output()), zip(*rows, strict=True), strict=True)
    return replace(below, columns={it.exprId().id(): _merged(values) for it, values in columns})


def _same(plan: Any, below: Groups) -> Groups:
    return below


def _unknown(plan: Any, below: Groups) -> Groups:
    removal = f"has {plan.nodeName()} behind an aggregate, which may leave out rows"
    return replace(_with_removal(below, removal), columns={})


_OPERATORS: Mapping[str, Callable[[Any, Groups], Groups]] = {
    "Project": _projected,
    "Filter": _filtered,
    "Generate": _exploded,
    "Expand": _expanded,
} | dict.fromkeys(SAME_ROWS, _same)


def _with_removal(groups: Groups, removal: str) -> Groups:
    return replace(groups, removals=(*groups.removals, removal))


def _renamed(columns: Columns, child: Any, union: Any) -> dict[int, Value]:
    pairs = zip(items(child.output()), items(union.output()), strict=True)
    return {new.exprId().id(): columns.get(old.exprId().id(), CHANGING) for old, new in pairs}


def _joined(plan: Any, children: Sequence[Any]) -> list[Groups]:
    """With rows that do not change: which of them a group meets is fixed if the condition is."""
    side = next(it for it, child in enumerate(children) if child.isStreaming())
    found = find_groups(children[side])
    other = children[1 - side]
    if other.isStreaming():
        return [_unknown(plan, it) for it in (*found, *find_groups(other))]
    unchanging = {it.exprId().id(): Value(True, is_null_fixed=True) for it in items(other.output())}
    return [_joined_groups(plan, side, it, unchanging) for it in found]


def _joined_groups(plan: Any, side: int, below: Groups, unchanging: dict[int, Value]) -> Groups:
    kind, condition = str(plan.joinType().sql()), plan.condition()
    terms = _terms(condition.get()) if condition.isDefined() else []
    columns = below.columns | unchanging
    if all(_value(it, columns).is_fixed for it in terms):
        equal = _equal_columns(terms, below.columns, unchanging) if kind == "INNER" else {}
        return replace(below, columns=columns | equal)
    found = replace(below, columns=below.columns | dict.fromkeys(unchanging, CHANGING))
    if kind == ("LEFT OUTER", "RIGHT OUTER")[side]:  # all rows of the aggregate stay
        return found
    return _with_removal(found, "joins an aggregate by a value that changes")


def _terms(condition: Any) -> list[Any]:
    """The conditions that are combined by AND."""
    if condition.nodeName() != "And":
        return [condition]
    return [it for child in items(condition.children()) for it in _terms(child)]


def _equal_columns(terms: Sequence[Any], columns: Columns, unchanging: Columns) -> dict[int, Value]:
    """The columns of the other side that are equal to those of a group."""
    equal = {}
    for term in terms:
        sides = items(term.children()) if term.nodeName() == "EqualTo" else []
        for one, other in zip(sides, reversed(sides), strict=True):
            if one.nodeName() == COLUMN and one.exprId().id() in unchanging:
                value = _value(other, columns | unchanging)
                if value.parts:
                    equal[one.exprId().id()] = value
    return equal


def _no_group(expression: Any) -> Value | None:
    return None


def _value(
    expression: Any, columns: Columns, given: Callable[[Any], Value | None] = _no_group
) -> Value:
    """What an expression is in the rows of a group. `given` knows what rows are grouped by."""
    known = given(expression)
    if known is not None:
        return known
    name = str(expression.nodeName())
    if name == COLUMN:
        return columns.get(expression.exprId().id(), CHANGING)
    below = [_value(it, columns, given) for it in items(expression.children())]
    if name == "Alias":
        return below[0]
    if name == "CreateNamedStruct":
        fields = tuple(below[1::2])
        return Value(all(it.is_fixed for it in fields), _parts(fields), True, fields)
    if name == "GetStructField":
        return _field(below[0], expression.ordinal())
    if name in ("CaseWhen", "If"):
        return _chosen(expression, below)
    if name in ("IsNull", "IsNotNull"):
        return Value(below[0].is_null_fixed, is_null_fixed=True)
    if name == "Cast" and _is_exact(expression):
        return replace(below[0], fields=())
    is_constant = bool(expression.deterministic()) and name not in ("AggregateExpression", *CURRENT)
    is_fixed = is_constant and all(it.is_fixed for it in below)
    return Value(is_fixed, is_null_fixed=is_fixed or not expression.nullable())


def _parts(values: Iterable[Value]) -> frozenset[str]:
    return frozenset[str]().union(*(it.parts for it in values))


def _field(struct: Value, place: int) -> Value:
    if not struct.fields:
        return Value(struct.is_fixed, is_null_fixed=struct.is_fixed)
    return struct.fields[place] if struct.is_null_fixed else CHANGING


def _chosen(expression: Any, below: Sequence[Value]) -> Value:
    """A value of CASE or IF: children are a condition and its value in turn, and what is left."""
    paired = len(below) // 2 * 2
    if not all(it.is_fixed for it in below[:paired:2]):
        return Value(is_null_fixed=not expression.nullable())
    places = [*range(1, paired, 2), *range(paired, len(below))]
    children = items(expression.children())
    return _merged([below[it] for it in places if not _is_null(children[it])])


def _merged(values: Sequence[Value]) -> Value:
    """One of several values; which one is fixed."""
    if not values:
        return Value(True, is_null_fixed=True)
    rows = [it.fields for it in values]
    is_struct = len({len(it) for it in rows}) == 1
    return Value(
        all(it.is_fixed for it in values),
        frozenset.intersection(*(it.parts for it in values)),
        all(it.is_null_fixed for it in values),
        tuple(map(_merged, zip(*rows, strict=True))) if is_struct else (),
    )


def _is_null(expression: Any) -> bool:
    if expression.nodeName() == "Cast":
        return _is_null(expression.child())
    return expression.nodeName() == "Literal" and expression.value() is None


def _is_exact(cast: Any) -> bool:
    """Whether different values stay different."""
    source, target = str(cast.child().dataType().typeName()), str(cast.dataType().typeName())
    if target == "string":
        return source in EXACT_TEXTS or (source == "timestamp" and _zone(cast) in UTC)
    if source in WHOLE_NUMBERS and target in WHOLE_NUMBERS:
        return WHOLE_NUMBERS.index(source) <= WHOLE_NUMBERS.index(target)
    return source == target


def _zone(cast: Any) -> str | None:
    zone = cast.timeZoneId()
    return str(zone.get()) if zone.isDefined() else None
