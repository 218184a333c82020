"""The options of `format("millstream")`: Spark's and Kafka's own names, checked before all else.

An option that does not exist is refused, with the nearest one that does. `kafka.*` options are
those of a Kafka client; what has no meaning here (a Java keystore, an interceptor) is refused by
name rather than ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from millstream.client.security import SETTINGS as SECURITY_SETTINGS
from millstream.client.security import Security
from millstream.errors import ConfigError
from millstream.pipelines.offsets import EARLIEST, LATEST, Offsets, parse_offsets

FORMATS = ("raw", "json", "avro", "csv", "text")

READ_OPTIONS = (
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
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "valueFormat",
)
KAFKA_OPTIONS = (
    "bootstrap.servers",
    "client.id",
    "group.id",
    "isolation.level",
    "max.partition.fetch.bytes",
    "fetch.max.wait.ms",
    "request.timeout.ms",
)
# What Java clients call it, and what to write instead.
_JAVA_ONLY = {
    "ssl.truststore.location": "ssl.ca.location, a PEM file",
    "ssl.truststore.password": "ssl.ca.location, a PEM file without a password",
    "ssl.keystore.location": "ssl.certificate.location and ssl.key.location, PEM files",
    "ssl.keystore.password": "ssl.key.password",
    "ssl.truststore.type": "ssl.ca.location, a PEM file",
    "ssl.keystore.type": "ssl.certificate.location and ssl.key.location, PEM files",
    "auto.offset.reset": "startingOffsets",
    "key.deserializer": "the columns key and value, which are bytes",
    "value.deserializer": "valueFormat, or the columns key and value, which are bytes",
    "enable.auto.commit": "nothing: progress is committed with every batch",
    "interceptor.classes": "nothing: interceptors are Java classes",
}
_JAAS_ENTRY = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d|milliseconds?|seconds?|minutes?|hours?|days?)?")
_MILLISECONDS = {"ms": 1, "mi": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


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
    max_trigger_delay_ms: int = 15 * 60_000
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False
    value_format: str = "raw"
    fetch_bytes_max: int = 8 * 1024 * 1024
    request_timeout_ms: int = 60_000


class GivenOptions:
    """The user's options, looked up whatever their case, each of them once known."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        _refuse_unknown(options, known)

    def get(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def integer(self, name: str, low: int) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        if not text.strip().isdigit() or int(text) < low:
            raise ConfigError(f"{name} is {text!r}; it must be a whole number of at least {low}")
        return int(text)

    def boolean(self, name: str, default: bool) -> bool:
        text = self.get(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name} is {text!r}; it must be true or false")
        return text.lower() == "true"


def parse_read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Raises `ConfigError` for options that are unknown, missing or do not fit together."""
    known = (*READ_OPTIONS, *(f"kafka.{it}" for it in (*KAFKA_OPTIONS, *SECURITY_SETTINGS)))
    given = GivenOptions(options, known)
    bootstrap = given.get("kafka.bootstrap.servers")
    if bootstrap is None:
        raise ConfigError('kafka.bootstrap.servers is missing; write "host:port"')
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if given.get(name) is not None:
                raise ConfigError(f"{name} makes no sense for a stream: it does not end")
    value_format = (given.get("valueFormat") or "raw").lower()
    if value_format not in FORMATS:
        raise ConfigError(f"valueFormat is {value_format}; it must be one of {', '.join(FORMATS)}")
    return ReadOptions(
        bootstrap_servers=bootstrap,
        selection=_selection(given),
        starting=_position(given, "starting", LATEST if streaming else EARLIEST),
        ending=_position(given, "ending", LATEST),
        security=security_of(options),
        client_id=given.get("kafka.client.id") or "millstream-spark",
        group_id=given.get("kafka.group.id"),
        read_committed=_is_read_committed(given),
        min_offsets_per_trigger=given.integer("minOffsetsPerTrigger", 1),
        max_offsets_per_trigger=given.integer("maxOffsetsPerTrigger", 1),
        max_trigger_delay_ms=parse_duration_ms(
            "maxTriggerDelay", given.get("maxTriggerDelay") or "15m"
        ),
        min_partitions=given.integer("minPartitions", 1),
        fail_on_data_loss=given.boolean("failOnDataLoss", True),
        include_headers=given.boolean("includeHeaders", False),
        value_format=value_format,
        fetch_bytes_max=given.integer("kafka.max.partition.fetch.bytes", 1)
        or ReadOptions.fetch_bytes_max,
        request_timeout_ms=given.integer("kafka.request.timeout.ms", 1)
        or ReadOptions.request_timeout_ms,
    )


def parse_duration_ms(option: str, text: str) -> int:
    """`15m`, `30 seconds`, `500ms`: in milliseconds."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"{option} is {text!r}; write a duration such as 30s or 15 minutes")
    unit = found[2] or "ms"
    unit = "ms" if unit.startswith("milli") else unit if unit == "ms" else unit[0]
    return int(found[1]) * _MILLISECONDS[unit]


def _refuse_unknown(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    by_lower = {name.lower(): name for name in known}
    for name in options:
        lower = name.lower()
        if lower in by_lower or lower == "path" or lower == "kafka.sasl.jaas.config":
            continue
        instead = _JAVA_ONLY.get(lower.removeprefix("kafka."))
        if instead is not None:
            raise ConfigError(f"{name} is for Java clients; use {instead}")
        close = get_close_matches(lower, by_lower, n=1)
        hint = f"; did you mean {by_lower[close[0]]}?" if close else ""
        raise ConfigError(f"option {name} is not known{hint}")


def _selection(given: GivenOptions) -> Selection:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if given.get(name)]
    if len(chosen) != 1:
        what = f"{' and '.join(chosen)} are given" if chosen else "none is given"
        raise ConfigError(f"{what}: choose one of subscribe, subscribePattern and assign")
    text = given.get(chosen[0]) or ""
    if chosen[0] == "subscribe":
        return Selection(topics=tuple(name.strip() for name in text.split(",") if name.strip()))
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


def _position(given: GivenOptions, prefix: str, default: int) -> Position:
    """Spark's order: a timestamp for all, then timestamps by partition, then offsets."""
    strategy = (given.get("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in ("error", "latest"):
        raise ConfigError(
            f"startingOffsetsByTimestampStrategy is {strategy}; it must be error or latest"
        )
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
            return Position(everywhere=default, offsets=parse_offsets(name, text or ""))


def _is_read_committed(given: GivenOptions) -> bool:
    level = given.get("kafka.isolation.level") or "read_committed"
    if level not in ("read_committed", "read_uncommitted"):
        raise ConfigError(
            f"kafka.isolation.level is {level}; it must be read_committed or read_uncommitted"
        )
    return level == "read_committed"


def security_of(options: Mapping[str, str]) -> Security:
    lowered = {name.lower(): value for name, value in options.items()}
    settings = {
        name: lowered[f"kafka.{name}"] for name in SECURITY_SETTINGS if f"kafka.{name}" in lowered
    }
    jaas = lowered.get("kafka.sasl.jaas.config")
    if jaas is not None:
        entries = dict(_JAAS_ENTRY.findall(jaas))
        if "username" not in entries or "password" not in entries:
            raise ConfigError(
                "kafka.sasl.jaas.config has no username and password; use kafka.sasl.username and "
                "kafka.sasl.password"
            )
        settings |= {"sasl.username": entries["username"], "sasl.password": entries["password"]}
    return Security.from_settings(settings)
