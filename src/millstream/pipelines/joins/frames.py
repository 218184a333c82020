"""The arguments of joins, checked before anything runs. Every error says what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, overload

from millstream.errors import ConfigError
from millstream.pipelines.columns import (
    DELETED_COLUMN,
    OFFSET_COLUMN,
    POSITION_COLUMN,
    TABLE_KEY,
    WATERMARK_DELAY,
    kind_of,
    name_column,
)
from millstream.pipelines.durations import Duration
from millstream.pipelines.lateness import DropOrDivert, Lateness
from millstream.pipelines.results import FINAL, KIND, LATE, LATENESS, drop_late

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

On: TypeAlias = str | Sequence[str] | Mapping[str, str]  # left name: right name
_ORDERED = ("tinyint", "smallint", "int", "bigint", "date", "timestamp", "timestamp_ntz", "binary")


def join_lateness(stragglers: object, allowed: Duration | None, count_as: str) -> Lateness:
    """The policy of a join of events. Raises `ConfigError`."""
    instead = (
        "If later rows must correct results, join changelogs: frame.transform(changes, ...) on "
        "both sides, then table_join, which corrects earlier output"
    )
    return Lateness.of(stragglers, allowed, count_as, DropOrDivert, instead)


def name_keys(
    left: DataFrame, right: DataFrame, on: On, *, static_right_allowed: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns that must be equal, of both sides."""
    is_static_right = left.isStreaming and not right.isStreaming
    if left.isStreaming != right.isStreaming and not (is_static_right and static_right_allowed):
        raise ConfigError(
            "one side of the join is a stream and the other is not: read both as streams, or both "
            "as batches. To join a stream with a table that does not change, use enrich"
        )
    columns = _by_left_name(on)
    if not columns:
        raise ConfigError('a join needs a column that both sides have: on="user"')
    for left_name, right_name in columns.items():
        kinds = kind_of(left, left_name), kind_of(right, right_name)
        if kinds[0] != kinds[1]:
            raise ConfigError(
                f"{left_name} is {kinds[0]} and {right_name} is {kinds[1]}: cast one of them, "
                "because equal values of different types do not match"
            )
    return tuple(columns), tuple(columns.values())


def right_names(on: On) -> tuple[str, ...]:
    """The key columns of the right side."""
    return tuple(_by_left_name(on).values())


def _by_left_name(on: On) -> dict[str, str]:
    if isinstance(on, str):
        on = [on]
    return dict(on) if isinstance(on, Mapping) else {name: name for name in on}


def table_key(frame: DataFrame) -> tuple[str, ...]:
    """The key of a topic that was declared as a table. Raises `ConfigError` for other frames."""
    found = tuple(field.name for field in frame.schema if field.metadata.get(TABLE_KEY))
    if not found:
        raise ConfigError(
            "the table's key is unknown: name its columns, or declare the topic as a table: "
            'topic(..., table_key="user")'
        )
    return found


@overload
def name_order(
    table: DataFrame, sequence: str | Column | None, delete: str | Column | None
) -> tuple[DataFrame, str, str | None]: ...


@overload
def name_order(
    table: DataFrame,
    sequence: str | Column | None,
    delete: str | Column | None,
    *,
    optional: Literal[True],
) -> tuple[DataFrame, str | None, str | None]: ...


def name_order(
    table: DataFrame,
    sequence: str | Column | None,
    delete: str | Column | None,
    *,
    optional: bool = False,
) -> tuple[DataFrame, str | None, str | None]:
    """The table with the columns that order its changes and mark deletes, and their names. By
    default they are those that the reader adds to a topic that was declared as a table."""
    if sequence is None and POSITION_COLUMN in table.columns:
        sequence = POSITION_COLUMN
    if delete is None and DELETED_COLUMN in table.columns:
        delete = DELETED_COLUMN
    if sequence is None and not optional:
        raise ConfigError(
            "which change of a key is newer is unknown: name a column of integers or times with "
            "sequence=, or declare the topic as a table: "
            f'topic(..., table_key="user"), and keep its column {POSITION_COLUMN}'
        )
    table, sequence_name = name_column(table, sequence)
    table, delete_name = name_column(table, delete)
    check_order(table, sequence_name)
    check_flag(table, delete_name)
    return table, sequence_name, delete_name


def check_order(frame: DataFrame, name: str | None) -> None:
    kind = None if name is None else kind_of(frame, name)
    if kind is None or name is None:
        return
    if name == OFFSET_COLUMN or frame.schema[name].metadata.get(OFFSET_COLUMN):
        raise ConfigError(
            f"sequence={name!r} is the offset of a record, which orders the records of one "
            "partition only: a key moves to another one when the topic gets more partitions or is "
            f"recreated. Use sequence={POSITION_COLUMN!r}, with {POSITION_COLUMN} binary in the "
            'schema, or declare the topic as a table: topic(..., table_key="user")'
        )
    if kind not in _ORDERED:
        raise ConfigError(
            f"sequence is {name}, which is {kind}: use a column of integers or times, or "
            f"{POSITION_COLUMN}"
        )


def check_flag(frame: DataFrame, name: str | None) -> None:
    kind = None if name is None else kind_of(frame, name)
    if kind not in (None, "boolean"):
        raise ConfigError(
            f"delete is {name}, which is {kind}: use a condition, like col({name!r}) == 'd'"
        )


def check_comparable(frame: DataFrame) -> None:
    """Raise `ConfigError` for a column that Spark cannot compare: rows with weights are compared by
    all of their columns."""
    for field in frame.schema:
        kind = field.dataType.simpleString()
        if "map<" in kind or "variant" in kind:
            raise ConfigError(
                f"{field.name} is {kind}, which cannot be compared, so a removed row would not be "
                f"found: use to_json({field.name}), or map_entries of a map"
            )


def other_columns(
    left: DataFrame,
    right: DataFrame,
    without: Sequence[str | None],
    reserved: Sequence[str],
) -> tuple[str, ...]:
    """The columns of the right side that the result has beside those of the left."""
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
    """The result of an operator that delays no row, with the watermark of `frame`."""
    for field in frame.schema:
        if WATERMARK_DELAY in field.metadata:
            result = result.withMetadata(field.name, field.metadata)
    return result


def keep_final(result: DataFrame, lateness: Lateness, **others: str) -> DataFrame:
    """The final results, from rows with a `_kind`. Late rows are counted in the query's progress,
    and rows of other kinds by these names."""
    from pyspark.sql.functions import col, count_if

    counts = {name: count_if(col(KIND) == kind) for name, kind in others.items()}
    on_time = drop_late(result, col(KIND) == LATE, lateness, others=counts)
    return on_time.where(col(KIND) == FINAL).drop(KIND, LATENESS)
