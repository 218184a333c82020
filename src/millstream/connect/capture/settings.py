"""The settings of a capture, from Python or from a TOML file."""

from __future__ import annotations

import fnmatch
import os
import re
import string
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from millstream.client.schema_registry import RegistrySettings
from millstream.client.security import KNOWN as SECURITY_SETTINGS
from millstream.client.security import read_connection
from millstream.connect.capture.envelope import EnvelopeSettings
from millstream.errors import ConfigError
from millstream.records.compression import Compression

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,99}")
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_TEMPLATE_FIELDS = ("name", "schema", "table")
# What a value must be, by the annotation of its setting. Choices are checked one by one.
_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a string", lambda it: isinstance(it, str)),
    "bool": ("true or false", lambda it: isinstance(it, bool)),
    "int": ("an integer", lambda it: isinstance(it, int) and not isinstance(it, bool)),
    "float": ("a number", lambda it: isinstance(it, int | float) and not isinstance(it, bool)),
    "Mapping[str, str]": (
        "a table of strings",
        lambda it: isinstance(it, Mapping) and _are_strings(it.values()),
    ),
}
COMPRESSIONS = {it.name.lower(): it for it in Compression}


@dataclass(frozen=True, kw_only=True)
class CaptureSettings:
    """What to capture, and where to write it. See docs/guides/capture.md."""

    name: str  # the capture: in topics, in the transactional id, and as `source.name`
    database: str  # a libpq URL or connection string
    tables: Sequence[str]  # schema.table, with * and ? as wildcards; !schema.table excludes
    broker: str = "127.0.0.1:9092"
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    slot: str = ""  # default: millstream_<name>
    publication: str = ""  # default: millstream_<name>
    manage_publication: bool = True  # create it, and add tables; else it must be there
    topic: str = "{name}.{schema}.{table}"
    partitions: int = 1
    topic_settings: Mapping[str, str] = field(default_factory=dict)
    compression: str = "none"
    format: Literal["json", "avro"] = "json"
    registry: str = ""  # for avro: the address of a schema registry
    registry_user_info: str = ""  # user:password
    shape: Literal["debezium", "flat"] = "debezium"
    decimals: Literal["string", "precise", "double"] = "string"
    hstores: Literal["json", "map"] = "json"
    tombstones: bool = True
    transactions: bool = False  # the block `transaction`, and the topic <name>.transaction
    messages: bool = True  # pg_logical_emit_message, to <name>.message
    snapshot: Literal["initial", "never"] = "initial"
    snapshot_workers: int = 2
    chunk_rows: int = 50_000
    slice_bytes: int = 8 * 1024 * 1024  # a larger transaction is written in several
    atomic: bool = False  # a database transaction is never cut, however large
    heartbeat_seconds: float = 10.0  # an idle capture moves its slot so often
    heartbeat_topic: bool = False  # and writes to __debezium-heartbeat.<name>
    failover: bool = False  # standbys copy the slot; PostgreSQL 17
    metrics: str = ""  # host:port where metrics are served; none by default
    slot_timeout_seconds: float = 120.0  # creating a slot waits for open transactions
    lag_alarm_bytes: int = 1024**3

    def __post_init__(self) -> None:
        self._check_types()
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"name {self.name!r}: use letters, digits, '.', '_' and '-'")
        for what in ("slot", "publication"):
            value = getattr(self, what) or re.sub(r"\W", "_", f"millstream_{self.name}").lower()
            object.__setattr__(self, what, value)
        if not _SLOT.fullmatch(self.slot):
            raise ConfigError(f"slot {self.slot!r}: use at most 63 of a-z, 0-9 and _")
        is_list = isinstance(self.tables, Sequence) and not isinstance(self.tables, str)
        if not is_list or not self.tables or not _are_strings(self.tables):
            raise ConfigError('tables: write a list such as ["public.orders", "sales.*"]')
        for pattern in self.tables:
            if pattern.count(".") != 1:
                raise ConfigError(f"tables: write {pattern!r} as schema.table, such as public.*")
        self._check_choices()
        self._check_template()
        if (self.format == "avro") != bool(self.registry):
            raise ConfigError("registry: a schema registry is needed for format avro, only there")
        if self.metrics and not re.fullmatch(r".+:\d+", self.metrics):
            raise ConfigError(f"metrics {self.metrics!r}: write host:port")
        for name in ("partitions", "snapshot_workers", "chunk_rows", "slice_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1")
        for name in ("heartbeat_seconds", "slot_timeout_seconds", "lag_alarm_bytes"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name} must be more than 0")

    def _check_types(self) -> None:
        for setting in fields(self):
            description, is_right = _TYPES.get(str(setting.type), ("", None))
            if is_right is not None and not is_right(getattr(self, setting.name)):
                raise ConfigError(f"{setting.name} must be {description}")

    def _check_template(self) -> None:
        try:
            parts = list(string.Formatter().parse(self.topic))
        except ValueError as error:
            raise ConfigError(f"topic {self.topic!r}: {error}") from None
        names = [name for _, name, _, _ in parts if name is not None]
        for name in names:
            if name not in _TEMPLATE_FIELDS:
                raise ConfigError(
                    f"topic {self.topic!r}: unknown field {{{name}}}; known: {{name}}, {{schema}} "
                    "and {table}"
                )
        if "table" not in names:
            raise ConfigError(f"topic {self.topic!r} needs {{table}}: each table has its own topic")

    def _check_choices(self) -> None:
        choices = {
            "format": ("json", "avro"),
            "shape": ("debezium", "flat"),
            "decimals": ("string", "precise", "double"),
            "hstores": ("json", "map"),
            "snapshot": ("initial", "never"),
            "compression": tuple(COMPRESSIONS),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(known)}"
                )

    # Names

    @property
    def transactional_id(self) -> str:
        return f"millstream-capture-{self.name}"

    @property
    def position_topic(self) -> str:
        return f"{self.name}.capture"

    @property
    def transaction_topic(self) -> str:
        return f"{self.name}.transaction"

    @property
    def message_topic(self) -> str:
        return f"{self.name}.message"

    @property
    def heartbeat_topic_name(self) -> str:
        return f"__debezium-heartbeat.{self.name}"

    @property
    def own_topics(self) -> list[str]:
        """The topics that the capture writes besides those of tables."""
        others = {
            self.transaction_topic: self.transactions,
            self.message_topic: self.messages,
            self.heartbeat_topic_name: self.heartbeat_topic,
        }
        return [self.position_topic, *(topic for topic, is_used in others.items() if is_used)]

    @property
    def signal_prefix(self) -> str:
        """Logical messages with this prefix are for the capture itself."""
        return f"millstream.capture.{self.name}"

    def topic_of(self, schema: str, table: str) -> str:
        name = self.topic.format(name=self.name, schema=schema, table=table)
        return re.sub(r"[^a-zA-Z0-9._-]", "_", name)

    def settings_of_topic(self, topic: str) -> dict[str, str]:
        """The settings that a new topic gets. Topics of tables keep all records by default: the
        broker's retention would remove rows that have not changed since the snapshot."""
        if topic in self.own_topics or "cleanup.policy" in self.topic_settings:
            return dict(self.topic_settings)
        return {"retention.ms": "-1", **self.topic_settings}

    def captures(self, schema: str, table: str) -> bool:
        """Whether the patterns select a table."""
        full = f"{schema}.{table}"
        wanted = [it for it in self.tables if not it.startswith("!")]
        refused = [it[1:] for it in self.tables if it.startswith("!")]
        return _matches(full, wanted) and not _matches(full, refused)

    def envelope(self, database: str) -> EnvelopeSettings:
        registry = None
        if self.registry:
            urls = tuple(it.strip() for it in self.registry.split(","))
            registry = RegistrySettings(urls, self.registry_user_info or None)
        return EnvelopeSettings(
            server_name=self.name,
            database=database,
            format=self.format,
            registry=registry,
            shape=self.shape,
            decimals=self.decimals,
            hstores=self.hstores,
            tombstones=self.tombstones,
            transaction_metadata=self.transactions,
        )


def _are_strings(values: Iterable[Any]) -> bool:
    return all(isinstance(it, str) for it in values)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def load_settings(path: Path, client_config: Path | None = None) -> CaptureSettings:
    """Settings from a TOML file; `${NAME}` in a value is replaced from the environment.

    `client_config`, here or in the file, names the settings of a Kafka client.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from None
    known = {it.name for it in fields(CaptureSettings)} | {"client_config"}
    for name in given:
        if name not in known:
            raise ConfigError(f"{path}: unknown setting {name}; known: {', '.join(sorted(known))}")
    for name in ("name", "database", "tables"):
        if name not in given:
            raise ConfigError(f"{path}: {name} is missing")
    security = given.get("security", {})
    if not isinstance(security, dict):
        raise ConfigError(f"{path}: security must be a table of strings: [security]")
    for name in security:
        if name not in SECURITY_SETTINGS:
            raise ConfigError(f"{path}: unknown setting security.{name}")
    given = {name: _expand(value, path) for name, value in given.items()}
    if client_config is not None:
        given.pop("security", None)
        given["client_config"] = str(client_config.absolute())
    _take_client_config(given, path.parent)
    try:
        return CaptureSettings(**given)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _take_client_config(given: dict[str, Any], directory: Path) -> None:
    """The security settings of a client's file, and its brokers unless others are named."""
    file = given.pop("client_config", None)
    if file is None:
        return
    security, broker = read_connection(directory / Path(str(file)).expanduser())
    given["security"] = security | given.get("security", {})
    if broker is not None:
        given.setdefault("broker", broker)


def _expand(value: Any, path: Path) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: _variable(found[1], path), value)
    if isinstance(value, dict):
        return {name: _expand(it, path) for name, it in value.items()}
    if isinstance(value, list):
        return [_expand(it, path) for it in value]
    return value


def _variable(name: str, path: Path) -> str:
    if name not in os.environ:
        raise ConfigError(f"{path}: the environment has no variable {name}")
    return os.environ[name]
