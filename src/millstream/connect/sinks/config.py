"""The file of a sink: which topics it reads, and what it keeps in step with them.

    name = "shop"                            # the target keeps positions under this name
    broker = "127.0.0.1:9092"
    to = "sqlite:///shop.db"                 # see below
    format = "debezium"                      # or "json"; also per topic
    bad_records = "deadletter"               # or "drop" or "fail"; also per topic
    allow_partial = false                    # true: topics may have lost their beginning; also per
                                             # topic
    registry = "http://127.0.0.1:8081"       # a schema registry, if records are Avro
    registry_user_info = "user:password"
    client_config = "client.properties"      # a Kafka client's settings; relative to this file
    pause_seconds = 10                       # between writes; default: 0, for Delta and Parquet 10

    [topics."shop.public.orders"]
    table = "orders"                         # default: the last part of the topic's name
    key = "id"                               # or a list
    columns = "id long, customer string, total decimal(12,2)"      # of tables
    fields = ["title", "body"]               # of a search index: the text to search
    stored = ["price"]                       # of a search index: returned with it
    dead_letters = "dlq.orders"              # default: dlq. and the topic's name

    [kafka]                                  # its security settings, instead or besides
    "security.protocol" = "SASL_SSL"

An unknown name is an error that suggests the nearest.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

from millstream.client.schema_registry import RegistrySettings, parse_urls
from millstream.client.security import KNOWN as SECURITY_SETTINGS
from millstream.client.security import read_connection, standard_names
from millstream.connect.sinks.changes import Format, check_format
from millstream.errors import ConfigError
from millstream.partitions import DEAD_LETTER_PREFIX

BAD_RECORDS = ("deadletter", "drop", "fail")
PATIENCE_SECONDS = 300.0
_NAMES = (
    "name", "broker", "to", "format", "bad_records", "allow_partial", "registry",
    "registry_user_info", "pause_seconds", "patience_seconds", "topics", "kafka", "client_config",
)  # fmt: skip
_TOPIC_NAMES = (
    "table", "key", "columns", "fields", "stored", "format", "bad_records", "allow_partial",
    "dead_letters",
)  # fmt: skip
_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,99}")


@dataclass(frozen=True)
class TopicConfig:
    """A topic and its table, index or prefix of keys."""

    topic: str
    key: tuple[str, ...]
    table: str = ""
    columns: str | None = None
    fields: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    format: Format = "debezium"
    bad_records: str = "deadletter"
    dead_letters: str = ""
    allow_partial: bool = False  # fill the target also from a log that has lost its beginning

    def __post_init__(self) -> None:
        if isinstance(self.key, str):
            object.__setattr__(self, "key", (self.key,))
        if not self.key or not all(isinstance(it, str) and it for it in self.key):
            raise ConfigError(f"topic {self.topic}: key must name the columns of the key")
        if not self.table:
            object.__setattr__(self, "table", self.topic.rpartition(".")[2])
        if not self.dead_letters:
            object.__setattr__(self, "dead_letters", DEAD_LETTER_PREFIX + self.topic)
        check_format(self.topic, self.format)
        if self.bad_records not in BAD_RECORDS:
            raise ConfigError(
                f"topic {self.topic}: bad_records is {self.bad_records!r}; it must be one of "
                + ", ".join(BAD_RECORDS)
            )


@dataclass(frozen=True)
class SinkConfig:
    """A sink as declared: its name, the broker, the target's address, and what it takes of each
    topic. Made by `load_config` or `parse_config`."""

    name: str
    broker: str
    to: str
    topics: tuple[TopicConfig, ...]
    patience_seconds: float = PATIENCE_SECONDS  # how long a broker or target is waited for
    kafka: Mapping[str, str] = field(default_factory=dict, repr=False)
    registry: RegistrySettings | None = None
    pause_seconds: float | None = None  # between writes; None: what the kind of target needs

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"name is {self.name!r}; use letters, digits, '.', '_' and '-', at most 100"
            )
        if not self.topics:
            raise ConfigError(f'sink {self.name}: no topics; add [topics."name"]')
        for what, names in (
            ("topic", [it.topic for it in self.topics]),
            ("table", [it.table.lower() for it in self.topics]),
        ):
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise ConfigError(f"sink {self.name}: several topics have the {what} {twice}")


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> SinkConfig:
    """Read a sink's file; `overrides` replace its values if they are not None."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    given_here = {name: it for name, it in (overrides or {}).items() if it is not None}
    if "client_config" in given_here:
        given.pop("kafka", None)
        given.pop("client_config", None)
    return parse_config(given | given_here, str(path), path.parent)


def parse_config(
    given: Mapping[str, Any], where: str = "sink", directory: Path = Path()
) -> SinkConfig:
    """The sink that a parsed TOML file declares. `where` names it in errors; paths in it are
    relative to `directory`."""
    refuse_unknown(given, _NAMES, where)
    given = _with_client_config(given, where, directory)
    missing = [name for name in ("name", "broker", "to", "topics") if not given.get(name)]
    if missing:
        raise ConfigError(f"{where}: {', '.join(missing)} must be given")
    for name in ("name", "broker", "to"):
        if not isinstance(given[name], str):
            raise ConfigError(f"{where}: {name} must be a string")
    topics = given["topics"]
    if not isinstance(topics, Mapping) or not all(
        isinstance(it, Mapping) for it in topics.values()
    ):
        raise ConfigError(f'{where}: topics must be tables: [topics."name"]')
    shared = {
        name: given[name] for name in ("format", "bad_records", "allow_partial") if name in given
    }
    pause = None if "pause_seconds" not in given else _seconds(given, "pause_seconds", where)
    return SinkConfig(
        name=given["name"],
        broker=given["broker"],
        to=given["to"],
        topics=tuple(_parse_topic(name, shared | dict(it), where) for name, it in topics.items()),
        patience_seconds=_seconds(given, "patience_seconds", where, PATIENCE_SECONDS),
        kafka=given["kafka"],
        registry=_registry(given, where),
        pause_seconds=pause,
    )


def _with_client_config(given: Mapping[str, Any], where: str, directory: Path) -> dict[str, Any]:
    """With `kafka` in librdkafka's names, and `broker`, also from the settings file of a client."""
    kafka = given.get("kafka", {})
    refuse_unknown(kafka, SECURITY_SETTINGS, f"{where}: [kafka]")
    kafka = standard_names({name: str(it) for name, it in kafka.items()})
    file = given.get("client_config")
    if file is None:
        return {**given, "kafka": kafka}
    if not isinstance(file, str | Path):
        raise ConfigError(f"{where}: client_config must be a string")
    found, broker = read_connection(directory / Path(file).expanduser())
    return {"broker": broker, **given, "kafka": found | kafka}


def _seconds(given: Mapping[str, Any], name: str, where: str, default: float = 0.0) -> float:
    value = given.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"{where}: {name} must be a number of seconds")
    return float(value)


def _registry(given: Mapping[str, Any], where: str) -> RegistrySettings | None:
    for name in ("registry", "registry_user_info"):
        if not isinstance(given.get(name, ""), str):
            raise ConfigError(f"{where}: {name} must be a string")
    if "registry" not in given:
        return None
    return RegistrySettings(parse_urls(given["registry"]), given.get("registry_user_info"))


def _parse_topic(topic: str, given: Mapping[str, Any], where: str) -> TopicConfig:
    where = f"{where}: topic {topic}"
    refuse_unknown(given, _TOPIC_NAMES, where)
    if "key" not in given:
        raise ConfigError(f"{where}: key must name the columns of the key")
    for name in ("table", "columns", "format", "bad_records", "dead_letters"):
        if name in given and not isinstance(given[name], str):
            raise ConfigError(f"{where}: {name} must be a string")
    if not isinstance(given.get("allow_partial", False), bool):
        raise ConfigError(f"{where}: allow_partial must be true or false")
    return TopicConfig(
        topic=topic,
        table=given.get("table", ""),
        key=_names(given["key"], f"{where}: key"),
        columns=given.get("columns"),
        fields=_names(given.get("fields", ()), f"{where}: fields"),
        stored=_names(given.get("stored", ()), f"{where}: stored"),
        format=cast(Format, given.get("format", "debezium")),
        bad_records=given.get("bad_records", "deadletter"),
        dead_letters=given.get("dead_letters", ""),
        allow_partial=given.get("allow_partial", False),
    )


def _names(given: Any, where: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(it, str) for it in names):
        raise ConfigError(f"{where} must be a name, or a list of names")
    return tuple(names)


def refuse_unknown(given: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            raise ConfigError(f"{where}: unknown name {name!r}{hint}")


def without_password(url: str) -> str:
    """An address as it may be shown."""
    head, at, tail = url.rpartition("@")
    scheme, slashes, user = head.partition("://")
    return f"{scheme}{slashes}{user.partition(':')[0]}{at}{tail}" if at else url
