"""What joins check of DataFrames, and name, before anything runs. Every error says what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from millstream.errors import ConfigError
from millstream.pipelines.columns import WATERMARK_DELAY, kind_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

On: TypeAlias = str | Sequence[str] | Mapping[str, str]  # left name: right name
KIND, LATENESS = "_kind", "_lateness"  # what became of a row, and how late it was, in seconds
FINAL, LATE = "final", "late"
_ORDERED = ("tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz")


def check_choice(name: str, value: object, choices: Any) -> None:
    """`choices` is a `Literal`."""
    if value not in get_args(choices):
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(get_args(choices))}")


def check_stragglers(value: object, choices: Any) -> None:
    """What a join of streams says is said; only changes of tables can be taken back."""
    if value == "correct":
        raise ConfigError(
            'stragglers="correct": a join of events says a result once. Where results are to be '
            "set right by what comes later, join change logs: frame.transform(changes, ...) on "
            "both sides, then table_join, which corrects all that it has said"
        )
    check_choice("stragglers", value, choices)


def name_keys(left: DataFrame, right: DataFrame, on: On) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns that must be equal, of both sides."""
    if left.isStreaming != right.isStreaming:
        raise ConfigError(
            "one side of the join is a stream and the other is not: read both as streams, or both "
            "as batches. For a table that does not change, use Spark's own join"
        )
    if isinstance(on, str):
        on = [on]
    columns = dict(on) if isinstance(on, Mapping) else {name: name for name in on}
    if not columns:
        raise ConfigError('a join needs a column that both sides have: on="user"')
    for left_name, right_name in columns.items():
        kinds = kind_of(left, left_name), kind_of(right, right_name)
        if kinds[0] != kinds[1]:
            raise ConfigError(
                f"{left_name} is {kinds[0]} and {right_name} is {kinds[1]}: cast one of them, "
                "since equal values of different types would not meet"
            )
    return tuple(columns), tuple(columns.values())


def check_order(frame: DataFrame, name: str | None) -> None:
    kind = None if name is None else kind_of(frame, name)
    if kind is not None and kind not in _ORDERED:
        raise ConfigError(
            f"sequence says which row is newer, and {name} is {kind}: give it a column of "
            "integers or times, like a topic's offset"
        )


def check_flag(frame: DataFrame, name: str | None) -> None:
    kind = None if name is None else kind_of(frame, name)
    if kind not in (None, "boolean"):
        raise ConfigError(
            f"deleted says whether a row is a delete, and {name} is {kind}: "
            f"give it a condition, like col({name!r}) == 'd'"
        )


def check_comparable(frame: DataFrame) -> None:
    """Rows that are told apart by all of their columns have none that Spark cannot compare."""
    for field in frame.schema:
        kind = field.dataType.simpleString()
        if "map<" in kind or "variant" in kind:
            raise ConfigError(
                f"{field.name} is {kind}, of which no two can be compared, so a row that is taken "
                f"away would not be found: use to_json({field.name}), or map_entries of a map"
            )


def other_columns(
    left: DataFrame,
    right: DataFrame,
    without: Sequence[str | None],
    reserved: Sequence[str],
) -> tuple[str, ...]:
    """The columns of the right side that come out beside those of the left."""
    carried = tuple(name for name in right.columns if name not in without)
    taken = {*left.columns, *reserved}
    shared = [name for name in carried if name in taken]
    shared += [name for name in left.columns if name in reserved]
    if shared:
        raise ConfigError(
            f"the result would have two columns {shared[0]}: rename one before the join with "
            f'withColumnRenamed("{shared[0]}", ...)'
        )
    return carried


def keep_watermark(result: DataFrame, frame: DataFrame) -> DataFrame:
    """The result, whose rows came out as soon as they came in, with the watermark of `frame`."""
    for field in frame.schema:
        if WATERMARK_DELAY in field.metadata:
            result = result.withMetadata(field.name, field.metadata)
    return result


def count_late(result: DataFrame, count_as: str, **others: str) -> DataFrame:
    """The results alone; late rows are counted in the query's progress as "dropped", and what else
    there is by the names of these kinds."""
    from pyspark.sql.functions import col, count_if

    kinds = {"dropped": LATE, **others}
    counts = [count_if(col(KIND) == kind).alias(name) for name, kind in kinds.items()]
    return result.observe(count_as, *counts).where(col(KIND) == FINAL).drop(KIND, LATENESS)
