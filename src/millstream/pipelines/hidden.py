"""The column `_watermark` that the reader adds: it has a name, but is not one of a frame's columns.

It differs between batches, so it must not be in what a function computes from all columns of a
topic: JSON, hashes, groups, unions. `hide_watermark` removes it from the output of a plan, as Spark
does with its own metadata columns: `*`, `columns` and `printSchema` do not have it, and
`col("_watermark")` finds it.

Operators that detect late rows call `show_watermark`, which passes the column from where it is
hidden up to the frame. It follows the rows, so it does not matter what the function has selected:

    selections, filters, views, WITH      pass it on
    union                                 passes it on if all of its inputs have it
    join with rows that are no stream     passes it on
    inner join of two streams             passes the greater on: one of the rows is of this batch
    other joins, aggregates, state        do not: their rows are others, or of other batches
    functions in Python                   do not, unless it is selected before

`cut_watermark` is for results of operators that delay rows and do not end it by themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.pipelines.columns import WATERMARK_COLUMN
from millstream.pipelines.plans import JOIN, analyzed, inlined, items

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_IS_METADATA = "__metadata_col"  # Spark's metadata of a column that is found by its name only
_DISTINCT, _PROJECT, _UNION = "Distinct", "Project", "Union"


class _Plan(NamedTuple):
    """A plan with the column in its output."""

    plan: Any
    attribute: Any


def hide_watermark(frame: DataFrame) -> DataFrame:
    """The frame with `_watermark` hidden; a client of Spark Connect, where pipelines only run over
    history, has no access to plans and loses the column, which is null there."""
    if WATERMARK_COLUMN not in frame.columns:
        return frame
    if not _is_classic(frame):
        return frame.drop(WATERMARK_COLUMN)
    plan = analyzed(frame.withMetadata(WATERMARK_COLUMN, {_IS_METADATA: WATERMARK_COLUMN}))
    shown = [it for it in items(plan.output()) if it.name() != WATERMARK_COLUMN]
    hidden = [it for it in items(plan.output()) if it.name() == WATERMARK_COLUMN]
    return _hiding(frame, shown, hidden, plan)


def cut_watermark(frame: DataFrame) -> DataFrame:
    """The frame without `_watermark`, hidden or not."""
    frame = frame.drop(WATERMARK_COLUMN)
    if not frame.isStreaming or not _is_classic(frame):
        return frame
    plan = analyzed(frame)
    return _hiding(frame, items(plan.output()), [], plan)


def show_watermark(frame: DataFrame) -> DataFrame:
    """The frame with `_watermark` as its last column, if it is hidden in it."""
    if WATERMARK_COLUMN in frame.columns or not frame.isStreaming or not _is_classic(frame):
        return frame
    plan = inlined(frame)
    jvm: Any = frame.sparkSession._jvm
    found = _Threading(jvm).follow(plan)
    if found is None:
        return frame
    columns = _sequence(jvm, [*items(plan.output()), found.attribute])
    project = jvm.org.apache.spark.sql.catalyst.plans.logical.Project(columns, found.plan)
    return _frame(frame, project).withMetadata(WATERMARK_COLUMN, {})


def hide_again(result: DataFrame, frame: DataFrame) -> DataFrame:
    """The result of an operator that was given `show_watermark(frame)`, as the frame has it."""
    return result if WATERMARK_COLUMN in frame.columns else hide_watermark(result)


class _Threading:
    """Passes the column through the operators of a plan."""

    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm
        catalyst = jvm.org.apache.spark.sql.catalyst
        self._logical = catalyst.plans.logical
        self._expressions = catalyst.expressions
        self._hidden = catalyst.plans.logical.Project.hiddenOutputTag()

    def follow(self, plan: Any) -> _Plan | None:
        """The plan with the column; None if its rows have none."""
        name, children = str(plan.nodeName()), items(plan.children())
        if not plan.isStreaming() or not children:
            return None
        if name == _PROJECT:
            return self._project(plan)
        if name == _UNION:
            return self._union(plan, children)
        if name == JOIN:
            return self._join(plan, children)
        inner = self.follow(children[0]) if len(children) == 1 and name != _DISTINCT else None
        if inner is None:
            return None
        passing = plan.withNewChildren(self._sequence([inner.plan]))
        return _Plan(passing, inner.attribute) if _has(passing, inner.attribute) else None

    def _project(self, plan: Any) -> _Plan | None:
        hidden = plan.getTagValue(self._hidden)
        if hidden.isDefined():
            attributes = items(hidden.get())
            if not attributes:
                return None
            for it in attributes:
                if it.name() == WATERMARK_COLUMN and _has(plan.child(), it):
                    return self._extended(plan, _Plan(plan.child(), it))
        inner = self.follow(plan.child())
        return None if inner is None else self._extended(plan, inner)

    def _extended(self, plan: Any, inner: _Plan) -> _Plan:
        """The projection of the inner plan, with the column."""
        if _has(plan, inner.attribute):
            return _Plan(plan, inner.attribute)
        columns = self._sequence([*items(plan.projectList()), inner.attribute])
        extended = self._logical.Project(columns, inner.plan)
        extended.copyTagsFrom(plan)
        return _Plan(extended, inner.attribute)

    def _union(self, plan: Any, children: list[Any]) -> _Plan | None:
        sides = [self._side(it) for it in children]
        if any(it is None for it in sides):
            return None
        united = plan.withNewChildren(self._sequence([it.plan for it in sides if it is not None]))
        return _Plan(united, items(united.output())[-1])

    def _join(self, plan: Any, children: list[Any]) -> _Plan | None:
        streams = [it for it in children if it.isStreaming()]
        if len(streams) > 1 and str(plan.joinType().sql()) not in ("INNER", "CROSS"):
            return None
        sides = [it for it in map(self._side, streams) if it is not None]
        if len(sides) < len(streams):
            return None
        plans = iter([it.plan for it in sides])
        return self._joined(
            plan, [next(plans) if it.isStreaming() else it for it in children], sides
        )

    def _joined(self, plan: Any, children: list[Any], sides: list[_Plan]) -> _Plan | None:
        joined = plan.withNewChildren(self._sequence(children))
        if not all(_has(joined, it.attribute) for it in sides):
            return None
        if len(sides) == 1:
            return _Plan(joined, sides[0].attribute)
        newest = self._expressions.Greatest(self._sequence([it.attribute for it in sides]))
        columns = [*items(plan.output()), self._named(newest)]
        projected = self._logical.Project(self._sequence(columns), joined)
        return _Plan(projected, items(projected.output())[-1])

    def _side(self, child: Any) -> _Plan | None:
        """One of several inputs, with the column as its last, under an id of its own: both sides
        may have the rows of one topic."""
        inner = self.follow(child)
        if inner is None:
            return None
        columns = [*items(child.output()), self._named(inner.attribute)]
        side = self._logical.Project(self._sequence(columns), inner.plan)
        return _Plan(side, items(side.output())[-1])

    def _named(self, expression: Any) -> Any:
        none, nothing = self._jvm.scala.Option.empty(), self._sequence([])
        new_id = self._expressions.NamedExpression.newExprId()
        return self._expressions.Alias(expression, WATERMARK_COLUMN, new_id, nothing, none, nothing)

    def _sequence(self, given: list[Any]) -> Any:
        return _sequence(self._jvm, given)


def _has(plan: Any, attribute: Any) -> bool:
    return bool(plan.outputSet().contains(attribute))


def _is_classic(frame: DataFrame) -> bool:
    return hasattr(frame, "_jdf")


def _hiding(frame: DataFrame, shown: list[Any], hidden: list[Any], plan: Any) -> DataFrame:
    jvm: Any = frame.sparkSession._jvm
    logical = jvm.org.apache.spark.sql.catalyst.plans.logical
    project = logical.Project(_sequence(jvm, shown), plan)
    project.setTagValue(logical.Project.hiddenOutputTag(), _sequence(jvm, hidden))
    return _frame(frame, project)


def _frame(frame: DataFrame, plan: Any) -> DataFrame:
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    session = frame.sparkSession
    jvm: Any = session._jvm
    dataset = jvm.org.apache.spark.sql.classic.Dataset
    return ClassicDataFrame(dataset.ofRows(session._jsparkSession, plan), session)


def _sequence(jvm: Any, given: list[Any]) -> Any:
    return jvm.PythonUtils.toSeq(given)
