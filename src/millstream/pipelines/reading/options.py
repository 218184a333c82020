"""The options of `spark.read` and `spark.readStream` with `format("millstream")`.

They have the names that Spark and Kafka use, and are checked before all else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.client.security import Security
from millstream.config.archive import check_archive_path
from millstream.errors import ConfigError
from millstream.partitions import DEAD_LETTER_PREFIX
from millstream.pipelines.avro.options import PREFIXED_OPTIONS as REGISTRY_ALIASES
from millstream.pipelines.avro.options import READ_OPTIONS as AVRO_OPTIONS
from millstream.pipelines.avro.options import AvroOptions, parse_avro_options
from millstream.pipelines.offsets import EARLIEST, LATEST, Offsets, parse_offsets
from millstream.pipelines.options import GivenOptions, refuse_unknown

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

FORMATS = ("raw", "json", "avro", "csv", "text")

CSV_OPTIONS = ("sep", "delimiter", "quote", "escape", "header")
# What becomes of records that do not decode, in our words and in Spark's.
MODES = {
    "fail": "fail",
    "failfast": "fail",
    "drop": "drop",
    "dropmalformed": "drop",
    "deadletter": "deadletter",
}
MAX_TRIGGER_DELAY_MS = 15 * 60_000
# Numbers that are timestamps in JSON and CSV, beside ISO 8601: microseconds of the unit since 1970.
TIMESTAMP_FORMATS = {"iso": 0, "epoch_seconds": 1_000_000, "epoch_millis": 1_000, "epoch_micros": 1}
READ_OPTIONS = (
    "archive",
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minOffsetsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
    "includeHeaders",
    "valueFormat",
    "timestampFormat",
    "mode",
    "deadLetterTopic",
    "pipeline",
    "pipelineVersion",
    "pipelineInput",
    "checkpointLocation",
    "loadFirst",
    "idleAfter",
    "idleColumn",
    "queriesTopic",
    "haltFile",
    "shreddingKeys",
    *CSV_OPTIONS,
    *AVRO_OPTIONS,
    *REGISTRY_ALIASES,
)
KAFKA_OPTIONS = (
    "bootstrap.servers",
    "client.id",
    "group.id",
    "isolation.level",
    "max.partition.fetch.bytes",
    "fetch.max.wait.ms",
    "request.timeout.ms",
    "default.api.timeout.ms",
)


@dataclass(frozen=True)
class Selection:
    """Which topics are read: exactly one of these is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Position:
    """Where to begin or end: at an offset of each partition, or at a moment."""

    everywhere: int = LATEST
    offsets: Offsets = field(default_factory=dict)
    timestamp_ms: int | None = None
    timestamps_ms: Offsets = field(default_factory=dict)
    when_none_is_as_new: str = "error"  # or "latest"


@dataclass(frozen=True)
class CsvDialect:
    """How a line of CSV is written; Spark's defaults. NUL stands for none, as in Spark."""

    separator: str = ","
    quote: str = '"'
    escape: str = "\\"


@dataclass(frozen=True)
class ReadOptions:
    """What a reader needs to know."""

    bootstrap_servers: str
    selection: Selection
    starting: Position
    ending: Position
    security: Security = field(default_factory=Security)
    client_id: str = "millstream-spark"
    group_id: str | None = None
    read_committed: bool = True
    min_offsets_per_trigger: int | None = None
    max_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = MAX_TRIGGER_DELAY_MS
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    value_format: str = "raw"
    epoch_unit_us: int = 0  # of numbers that are timestamps; 0: numbers are none
    row_schema: StructType | None = None  # what typed rows look like; None: raw ones
    mode: str = "fail"  # or drop, deadletter
    dead_letter_topic: str | None = None
    pipeline: str | None = None
    pipeline_version: str | None = None
    pipeline_input: str | None = None  # the parameter that it is read for
    checkpoint_location: str | None = None  # of the query that reads, for its watermark
    load_first: Offsets = field(default_factory=dict)  # how far others are read before this begins
    idle_after_ms: int | None = None
    idle_column: str = ""  # the time of ticks
    queries_topic: str | None = None  # of standing queries, whose end is part of a batch
    archive: str | None = None  # where archived records are read, instead of from the brokers
    halt_file: str | None = None  # where the stream has to halt, while it exists
    # The store of subjects' keys, with which values are decrypted; it may have a password.
    shredding_keys: str | None = field(default=None, repr=False)
    csv: CsvDialect = field(default_factory=CsvDialect)
    avro: AvroOptions = field(default_factory=AvroOptions)
    fetch_bytes_max: int = 8 * 1024 * 1024
    fetch_wait_ms: int = 500
    request_timeout_ms: int = 30_000  # for one request
    patience_ms: int = 120_000  # for brokers that are away, or leaders that are not elected

    def dead_letters_of(self, topic: str) -> str | None:
        """Where the dead letters of a topic go; None if it has dead letters itself, and they stay.

        Never into itself; from a topic that is called like one only where that was asked for.
        """
        if self.dead_letter_topic is None:
            is_one = topic.startswith(DEAD_LETTER_PREFIX)
            return None if is_one else f"{DEAD_LETTER_PREFIX}{topic}"
        return None if topic == self.dead_letter_topic else self.dead_letter_topic


def parse_read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Raises `ConfigError` for options that are unknown, missing or do not fit together."""
    refuse_unknown(options, (*READ_OPTIONS, *(f"kafka.{it}" for it in KAFKA_OPTIONS)))
    given = GivenOptions(options)
    bootstrap = given.bootstrap_servers()
    _check_fits(given, streaming)
    value_format = given.one_of("valueFormat", FORMATS, "raw")
    delay_ms = given.duration_ms("maxTriggerDelay")
    return ReadOptions(
        bootstrap_servers=bootstrap,
        selection=_selection(given),
        starting=_position(given, "starting", LATEST if streaming else EARLIEST),
        ending=_position(given, "ending", LATEST, streaming=streaming),
        security=given.security(),
        client_id=given.get("kafka.client.id") or "millstream-spark",
        group_id=given.get("kafka.group.id"),
        read_committed=_is_read_committed(given),
        min_offsets_per_trigger=given.integer("minOffsetsPerTrigger", 1),
        max_offsets_per_trigger=given.integer("maxOffsetsPerTrigger", 1),
        max_trigger_delay_ms=MAX_TRIGGER_DELAY_MS if delay_ms is None else delay_ms,
        min_partitions=given.integer("minPartitions", 1),
        max_records_per_partition=given.integer("maxRecordsPerPartition", 1),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        include_headers=given.boolean("includeHeaders", False),
        value_format=value_format,
        epoch_unit_us=_epoch_unit_us(given, value_format),
        mode=_mode(given, value_format),
        dead_letter_topic=_dead_letter_topic(given),
        pipeline=given.get("pipeline"),
        pipeline_version=given.get("pipelineVersion"),
        pipeline_input=given.get("pipelineInput"),
        checkpoint_location=given.get("checkpointLocation"),
        load_first=_load_first(given),
        idle_after_ms=_idle_after_ms(given),
        idle_column=given.get("idleColumn") or "",
        queries_topic=given.get("queriesTopic"),
        archive=_archive(given),
        halt_file=given.get("haltFile"),
        shredding_keys=given.get("shreddingKeys"),
        csv=_csv_dialect(given, value_format),
        avro=parse_avro_options(given, value_format),
        fetch_bytes_max=given.integer("kafka.max.partition.fetch.bytes", 1)
        or ReadOptions.fetch_bytes_max,
        fetch_wait_ms=given.integer("kafka.fetch.max.wait.ms", 1) or ReadOptions.fetch_wait_ms,
        request_timeout_ms=given.integer("kafka.request.timeout.ms", 1)
        or ReadOptions.request_timeout_ms,
        patience_ms=given.integer("kafka.default.api.timeout.ms", 1) or ReadOptions.patience_ms,
    )


def _archive(given: GivenOptions) -> str | None:
    path = given.get("archive")
    if path is not None:
        check_archive_path(path)
    return path


def _epoch_unit_us(given: GivenOptions, value_format: str) -> int:
    text = given.get("timestampFormat")
    if text is None:
        return 0
    if value_format not in ("json", "csv"):
        raise ConfigError(f"timestampFormat is for JSON and CSV, and valueFormat is {value_format}")
    unit_us = TIMESTAMP_FORMATS.get(text.strip().lower())
    if unit_us is None:
        choices = ", ".join(TIMESTAMP_FORMATS)
        raise ConfigError(f"timestampFormat is {text!r}; it must be one of {choices}")
    return unit_us


# For streams only.
TRIGGER_OPTIONS = (
    "minOffsetsPerTrigger",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "loadFirst",
    "idleAfter",
    "idleColumn",
    "haltFile",
)


def _check_fits(given: GivenOptions, streaming: bool) -> None:
    """Options that say something else in a batch than in a stream, or fight each other."""
    if streaming:
        for name in ("endingTimestamp", "endingOffsetsByTimestamp"):
            if given.get(name) is not None:
                raise ConfigError(f"{name} makes no sense for a stream: name its endingOffsets")
        if (given.get("endingOffsets") or "").strip().lower() == "latest":
            raise ConfigError(
                "endingOffsets=latest makes no sense for a stream: name offsets, or use the "
                "trigger availableNow"
            )
    else:
        for name in TRIGGER_OPTIONS:
            if given.get(name) is not None:
                raise ConfigError(
                    f"{name} makes no sense for a batch, which has no triggers; set endingOffsets"
                )
        if (given.get("startingOffsets") or "").strip().lower() == "latest":
            raise ConfigError(
                "startingOffsets=latest makes no sense for a batch: it would read nothing"
            )
    least = given.integer("minOffsetsPerTrigger", 1)
    most = given.integer("maxOffsetsPerTrigger", 1)
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is {most}"
        )


def _selection(given: GivenOptions) -> Selection:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if given.get(name)]
    if len(chosen) != 1:
        what = f"{' and '.join(chosen)} are given" if chosen else "none is given"
        raise ConfigError(f"{what}: choose one of subscribe, subscribePattern and assign")
    text = given.get(chosen[0]) or ""
    if chosen[0] == "subscribe":
        return Selection(topics=tuple(dict.fromkeys(filter(None, map(str.strip, text.split(","))))))
    if chosen[0] == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise ConfigError(f"subscribePattern {text!r}: {error}") from None
        return Selection(pattern=text)
    return Selection(partitions=_assigned(text))


def _assigned(text: str) -> tuple[tuple[str, int], ...]:
    try:
        nested = json.loads(text)
        return tuple((topic, int(it)) for topic, indexes in nested.items() for it in indexes)
    except (ValueError, AttributeError, TypeError):
        raise ConfigError(f'assign is {text!r}; write JSON like {{"topic": [0, 1]}}') from None


def _position(
    given: GivenOptions, prefix: str, default: int, *, streaming: bool = False
) -> Position:
    """Spark's order: a timestamp for all, then timestamps by partition, then offsets."""
    strategy = given.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    if prefix == "ending":
        strategy = "latest"
    name = f"{prefix}Timestamp"
    timestamp = given.integer(name, 0)
    if timestamp is not None:
        return Position(timestamp_ms=timestamp, when_none_is_as_new=strategy)
    name = f"{prefix}OffsetsByTimestamp"
    text = given.get(name)
    if text is not None:
        return Position(timestamps_ms=parse_offsets(name, text), when_none_is_as_new=strategy)
    name = f"{prefix}Offsets"
    text = given.get(name)
    match (text or "").strip().lower():
        case "":
            return Position(everywhere=default)
        case "latest":
            return Position(everywhere=LATEST)
        case "earliest" if prefix == "starting":
            return Position(everywhere=EARLIEST)
        case _:
            offsets = parse_offsets(name, text or "")
            refused = EARLIEST if prefix == "ending" else LATEST if default == EARLIEST else None
            _check_named_ends(name, offsets, refused)
            if prefix == "ending" and streaming:
                _check_fixed(name, offsets)
            return Position(everywhere=default, offsets=offsets)


def _check_named_ends(name: str, offsets: Offsets, refused: int | None) -> None:
    """Of -1, the end, and -2, the beginning, one may be `refused`: a batch reads something."""
    for (topic, partition), offset in offsets.items():
        if offset < EARLIEST or offset == refused:
            raise ConfigError(
                f"{name} of {topic}-{partition} is {offset}; it must be an offset"
                + ("" if refused == LATEST else ", -1 for the end")
                + ("" if refused == EARLIEST else ", -2 for the beginning")
            )


def _check_fixed(name: str, offsets: Offsets) -> None:
    for (topic, partition), offset in offsets.items():
        if offset < 0:
            raise ConfigError(
                f"{name} of {topic}-{partition} is {offset}; for a stream it must be an offset"
            )


def _idle_after_ms(given: GivenOptions) -> int | None:
    found_ms, column = given.duration_ms("idleAfter"), given.get("idleColumn")
    if (found_ms is None) != (column is None):
        raise ConfigError(
            "idleAfter and idleColumn belong together: after how long a source is idle, and the "
            "column of its time"
        )
    if found_ms == 0:
        raise ConfigError("idleAfter is 0; write a duration such as 30s or 15 minutes")
    return found_ms


def _load_first(given: GivenOptions) -> Offsets:
    text = given.get("loadFirst")
    if text is None:
        return {}
    if given.get("checkpointLocation") is None:
        raise ConfigError(
            "loadFirst needs checkpointLocation, the same as the writer's: how far the query has "
            "read its other topics stands there"
        )
    return parse_offsets("loadFirst", text)


def _is_read_committed(given: GivenOptions) -> bool:
    levels = ("read_committed", "read_uncommitted")
    return given.one_of("kafka.isolation.level", levels, levels[0]) == levels[0]


def _mode(given: GivenOptions, value_format: str) -> str:
    """What becomes of records that do not decode; without a format none is looked at."""
    text = given.get("mode")
    if text is None:
        return ReadOptions.mode
    if value_format == "raw":
        raise ConfigError("mode makes no sense without valueFormat: raw records are not decoded")
    if text.lower() == "permissive":
        raise ConfigError(
            "mode is PERMISSIVE; to have rows for records that do not decode, name _error string "
            "in the schema and set mode to drop or deadletter"
        )
    if text.lower() not in MODES:
        raise ConfigError(f"mode is {text}; it must be one of {', '.join(MODES)}")
    return MODES[text.lower()]


def _dead_letter_topic(given: GivenOptions) -> str | None:
    topic = given.get("deadLetterTopic")
    mode = (given.get("mode") or "").lower()
    if topic is not None and MODES.get(mode) != "deadletter":
        raise ConfigError("deadLetterTopic makes no sense without mode=deadletter")
    if topic is not None and topic in map(str.strip, (given.get("subscribe") or "").split(",")):
        raise ConfigError(f"deadLetterTopic {topic} is read itself; choose another one")
    return topic


def _csv_dialect(given: GivenOptions, value_format: str) -> CsvDialect:
    for name in CSV_OPTIONS:
        if given.get(name) is not None and value_format != "csv":
            raise ConfigError(f"{name} makes no sense without valueFormat=csv")
    if given.boolean("header", False):
        raise ConfigError("header=true makes no sense here: every record is a line of its own")
    separator = "sep" if given.get("sep") is not None else "delimiter"
    dialect = CsvDialect(
        _csv_character(given, separator, CsvDialect.separator),
        _csv_character(given, "quote", CsvDialect.quote, none="\0"),
        _csv_character(given, "escape", CsvDialect.escape, none="\0"),
    )
    if dialect.separator == dialect.quote:
        raise ConfigError(
            f"{separator} and quote are both {dialect.quote!r}; choose another quote, or none with "
            'quote=""'
        )
    return dialect


def _csv_character(given: GivenOptions, name: str, default: str, none: str = "") -> str:
    """What an option names; `none` where it is empty."""
    text = given.get(name)
    if text is None:
        return default
    character = text or none
    if len(character) != 1 or not character.isascii() or character in "\r\n":
        raise ConfigError(f"{name} is {text!r}; it must be one ASCII character")
    return character
