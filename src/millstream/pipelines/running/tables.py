"""Topics that are tables: the columns that the reader gives, and the table's rows made of them.

A topic that is declared with `table_key` is a table by the key of its records. The reader decodes
the values; the key's columns are made of the record's key here, since a delete has no value:

    one column          the key is its text, as `topic(key=...)` writes it; binary stays as it is
    several columns     the key is a JSON object with these fields

A record whose key does not have these types, or that has no key, is a bad record. It is counted
with those whose value does not decode, and dropped; with `bad_records="fail"` it ends the query. It
is not written to the dead-letter topic, because the reader, which does that, does not know its key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.pipelines.columns import (
    DELETED_COLUMN,
    ERROR_COLUMN,
    IDLE_COLUMN,
    OFFSET_COLUMN,
    POSITION_COLUMN,
    QUERIES_COLUMN,
    TABLE_KEY,
    WATERMARK_COLUMN,
    as_column,
)
from millstream.pipelines.hidden import hide_watermark

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField, StructType

    from millstream.pipelines.spec import Topic

KEY_COLUMN = "_key"
ADDED_TYPES = {KEY_COLUMN: "binary", POSITION_COLUMN: "binary", DELETED_COLUMN: "boolean"}


def declared_schema(topic: Topic) -> StructType | None:
    """The columns that the declaration names. Offsets are marked: they do not order a table."""
    from pyspark.sql.types import StructField, StructType

    given = StructType.fromDDL(topic.schema) if isinstance(topic.schema, str) else topic.schema
    if given is None:
        return None
    assert isinstance(given, StructType)
    return StructType(
        [
            StructField(it.name, it.dataType, it.nullable, {**it.metadata, OFFSET_COLUMN: True})
            if it.name == OFFSET_COLUMN
            else it
            for it in given
        ]
    )


def reader_schema(topic: Topic) -> StructType | None:
    """The columns that the reader is asked for: the declared ones, and the watermark and the end of
    the queries' topic if there are any. Those of a table may be null: a delete has none."""
    from pyspark.sql.types import StructField, StructType

    declared = declared_schema(topic)
    if declared is None:
        return None
    if topic.watermark is not None and WATERMARK_COLUMN not in declared.names:
        declared = StructType([*declared.fields]).add(WATERMARK_COLUMN, "timestamp")
    if topic.queries and QUERIES_COLUMN not in declared.names:
        declared = StructType([*declared.fields]).add(QUERIES_COLUMN, "long")
    if not topic.table_key:
        return declared
    columns = StructType(
        [
            StructField(it.name, it.dataType, True, it.metadata)
            for it in declared
            if it.name not in topic.table_key
        ]
    )
    for name, kind in ADDED_TYPES.items():
        if name not in columns.names:
            columns.add(name, kind)
    return columns


def hide_added(frame: DataFrame, topic: Topic) -> DataFrame:
    """The rows as a pipeline's function gets them: `_watermark` is hidden unless it is declared."""
    declared = declared_schema(topic)
    is_declared = declared is not None and WATERMARK_COLUMN in declared.names
    return frame if is_declared else hide_watermark(frame)


def table_schema(topic: Topic) -> StructType:
    """The columns that a pipeline's function gets of a table."""
    from pyspark.sql.types import StructType

    declared, read = declared_schema(topic), reader_schema(topic)
    assert declared is not None
    assert read is not None
    rest = [it for it in read if it.name != KEY_COLUMN or it.name in declared.names]
    return StructType([*_key_fields(topic, declared), *rest])


def as_table(frame: DataFrame, topic: Topic) -> DataFrame:
    """The rows of a table, its key first; other topics as they are."""
    if not topic.table_key:
        return frame
    declared = declared_schema(topic)
    assert declared is not None
    rest = [
        as_column(name)
        for name in frame.columns
        if name not in topic.table_key and (name != KEY_COLUMN or name in declared.names)
    ]
    return frame.select(*_key_columns(topic, declared), *rest)


def mark_bad_keys(frame: DataFrame, topic: Topic) -> DataFrame:
    """The rows of a table's reader, with the error in `_error` if the key is not one of the table,
    or, with `bad_records="fail"` and no such column, with an error that ends the query. Other
    topics are returned as they are."""
    from pyspark.sql.functions import coalesce, col, concat, lit, raise_error, when

    if not topic.table_key:
        return frame
    declared = declared_schema(topic)
    assert declared is not None
    is_bad = lit(False)
    for column in _key_columns(topic, declared):
        is_bad |= column.isNull()
    if IDLE_COLUMN in frame.columns:
        is_bad &= ~col(IDLE_COLUMN)
    kinds = ", ".join(
        f"{it.name} {it.dataType.simpleString()}" for it in _key_fields(topic, declared)
    )
    shown = coalesce(col(KEY_COLUMN).cast("string"), lit("null"))
    message = concat(lit("bad key of table "), lit(f"{topic.name} ({kinds}): "), shown)
    if ERROR_COLUMN in frame.columns:
        error = coalesce(col(ERROR_COLUMN), when(is_bad, message))
        return frame.withColumn(ERROR_COLUMN, error)
    if topic.bad_records != "fail":
        return frame.where(~is_bad)
    return frame.where(when(is_bad, raise_error(message).cast("boolean")).otherwise(lit(True)))


def _key_fields(topic: Topic, declared: StructType) -> list[StructField]:
    from pyspark.sql.types import StringType, StructField

    kinds = [
        declared[name].dataType if name in declared.names else StringType()
        for name in topic.table_key
    ]
    return [
        StructField(name, kind, True, {TABLE_KEY: True})
        for name, kind in zip(topic.table_key, kinds, strict=True)
    ]


def _key_columns(topic: Topic, declared: StructType) -> list[Column]:
    from pyspark.sql.functions import col, from_json
    from pyspark.sql.types import StructType

    fields = _key_fields(topic, declared)
    text = col(KEY_COLUMN).cast("string")
    if len(fields) > 1:
        parsed = from_json(text, StructType(fields))
        columns = [parsed.getField(it.name) for it in fields]
    else:
        is_binary = fields[0].dataType.simpleString() == "binary"
        columns = [col(KEY_COLUMN) if is_binary else text.try_cast(fields[0].dataType)]
    return [
        column.alias(it.name, metadata=it.metadata)
        for column, it in zip(columns, fields, strict=True)
    ]
