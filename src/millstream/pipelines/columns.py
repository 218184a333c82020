"""Column arguments of operators: resolved, named and checked before anything runs.

Every error names the problem and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args, overload

from millstream.errors import ConfigError
from millstream.pipelines.durations import duration_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Columns that the reader fills in, if the schema names them.
WATERMARK_COLUMN = "_watermark"
OFFSET_COLUMN = "_offset"
POSITION_COLUMN = "_position"
DELETED_COLUMN = "_deleted"
IDLE_COLUMN = "_idle"
ERROR_COLUMN = "_error"
QUERIES_COLUMN = "_queries"

WATERMARK_DELAY = "spark.watermarkDelayMs"  # Spark's metadata of a column with a watermark
TABLE_KEY = "millstream.table_key"  # metadata of the key columns of a topic that is a table


def as_column(given: str | Column) -> Column:
    from pyspark.sql.functions import col

    return col(f"`{given}`") if isinstance(given, str) else given


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise `ConfigError` unless the value is one of those of `choices`, a `Literal`."""
    if value not in get_args(choices):
        raise ConfigError(f"{name}={value!r}: choose one of {', '.join(get_args(choices))}")


def listed(given: str | Column | Sequence[str | Column]) -> list[str | Column]:
    """One column, or several; raises `ConfigError` for anything else."""
    from pyspark.sql import Column

    columns = [given] if isinstance(given, str | Column) else given
    if not isinstance(columns, Sequence) or not all(isinstance(it, str | Column) for it in columns):
        raise ConfigError(f"{given!r} is no column: give a name, a Column, or several of them")
    return list(columns)


def kind_of(frame: DataFrame, name: str) -> str:
    """A column's type; raises `ConfigError` if there is no such column."""
    if name not in frame.columns:
        raise ConfigError(f"there is no column {name!r}: {', '.join(frame.columns)}")
    return frame.schema[name].dataType.simpleString()


@overload
def name_column(frame: DataFrame, given: str | Column) -> tuple[DataFrame, str]: ...


@overload
def name_column(frame: DataFrame, given: None) -> tuple[DataFrame, None]: ...


def name_column(frame: DataFrame, given: str | Column | None) -> tuple[DataFrame, str | None]:
    """The frame with this column in it, and its name; an expression may need an alias."""
    if given is None:
        return frame, None
    if isinstance(given, str):
        kind_of(frame, given)
        return frame, given
    (name,) = frame.select(given).columns
    return (frame if name in frame.columns else frame.withColumn(name, given)), name


def name_columns(
    frame: DataFrame, key: str | Column | Sequence[str | Column], time: str | Column
) -> tuple[DataFrame, list[str], str]:
    """The frame with columns for the key and the time, and their names."""
    key_names = []
    for it in listed(key):
        frame, name = name_column(frame, it)
        key_names.append(name)
    frame, time_name = name_column(frame, time)
    return frame, key_names, time_name


def check_time(frame: DataFrame, time: str | Column, *, zoneless_allowed: bool = False) -> str:
    """The name of `time`; raises `ConfigError` unless it is a timestamp."""
    if isinstance(time, str):
        kind_of(frame, time)
    (field,) = frame.select(as_column(time)).schema.fields
    kind, name = field.dataType.simpleString(), field.name
    if kind == "timestamp" or (zoneless_allowed and kind == "timestamp_ntz"):
        return name
    how = {
        "string": f"to_timestamp({name})",
        "bigint": f"timestamp_millis({name}), if it counts milliseconds",
        "int": f"timestamp_seconds({name})",
        "timestamp_ntz": f'to_utc_timestamp({name}, "Europe/Berlin"), with its time zone',
    }.get(kind, f"cast({name} as timestamp)")
    raise ConfigError(f"time must be a timestamp, and {name} is {kind}: convert it with {how}")


def watermark_delay_ms(frame: DataFrame, time: str | Column) -> int | None:
    """The delay of the watermark of a column; None if it has none."""
    (field,) = frame.select(as_column(time)).schema.fields
    delay: int | None = field.metadata.get(WATERMARK_DELAY)
    return delay


def check_watermark(frame: DataFrame, time: str | Column, otherwise: str) -> None:
    """Raise `ConfigError` if a stream has no watermark on its time; `otherwise` is the result."""
    if frame.isStreaming and watermark_delay_ms(frame, time) is None:
        (name,) = frame.select(as_column(time)).columns
        raise ConfigError(
            f"this needs a watermark on {name}, or else {otherwise}: "
            f'frame.withWatermark("{name}", "1 minute") before it, or '
            f'topic(..., watermark=("{name}", "1 minute"))'
        )


def check_lateness(frame: DataFrame, time: str | Column, allowed_us: int) -> None:
    """Raise `ConfigError` if the allowed lateness is smaller than the watermark's delay, which is
    nearly always a misunderstanding: it counts from the watermark."""
    delay_ms = watermark_delay_ms(frame, time) if frame.isStreaming else None
    if not delay_ms or not allowed_us or allowed_us >= delay_ms * 1000:
        return
    (name,) = frame.select(as_column(time)).columns
    delay, both = duration_text(delay_ms * 1000), duration_text(delay_ms * 1000 + allowed_us)
    raise ConfigError(
        f"allowed_lateness {duration_text(allowed_us)!r} is smaller than the watermark's delay of "
        f"{delay}. It counts from the watermark, so rows could be {both} late in total: leave it "
        f'out, make it at least {delay}, or shorten the delay in withWatermark("{name}", ...)'
    )
