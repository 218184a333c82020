"""The broker's settings: an immutable, typed snapshot of everything in force.

A value comes from the first of these that has one, and the snapshot remembers which:

    1. dynamic, for this broker    IncrementalAlterConfigs on BROKER <id>, kept in the metadata log
    2. dynamic, for all brokers    the same on BROKER "" (the cluster's default)
    3. static                      file, environment, command line (config/sources.py)
    4. default                     Kafka's, except where the reference says why not

A change at run time makes a new snapshot (`with_dynamic`); the broker notifies subscribers.
Topics and groups derive their own settings from it (`topic_config`, `group_config`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from millstream.config.archive import ArchiveSettings, check_archive, check_archived
from millstream.config.authorization import AuthorizationSettings, check_authorization
from millstream.config.backlog import check_backlog
from millstream.config.cluster import ClusterSettings
from millstream.config.excised import check_excised
from millstream.config.foreign import check_foreign
from millstream.config.groups import (
    GroupConfig,
    GroupSettings,
    ShareGroupSettings,
    share_reset_timestamp_ms,
)
from millstream.config.log import LogSettings
from millstream.config.metrics import ClientMetricsConfig, MetricsSettings, parse_match
from millstream.config.network import NetworkSettings
from millstream.config.quotas import QuotaSettings
from millstream.config.replication import ReplicationSettings, check_throttled_replicas
from millstream.config.security import (
    LISTENER_PREFIX,
    SECURITY_SETTINGS,
    SecuritySettings,
    find_listener_setting,
)
from millstream.config.setting import (
    Mode,
    Setting,
    field_name,
    nearest,
    settings_of,
    text_of,
)
from millstream.config.topic import TopicConfig
from millstream.config.transactions import TransactionSettings
from millstream.errors import ConfigError
from millstream.security.protocol import SecurityProtocol

Derived = TypeVar("Derived", TopicConfig, GroupConfig)

QUEUED_REQUEST_BYTES_MAX = 256 * 1024 * 1024

_NOTHING: Mapping[str, str] = MappingProxyType({})


class Source(IntEnum):
    """Where a value comes from, with the numbers that DescribeConfigs gives them."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    DYNAMIC_CLIENT_METRICS = 7
    DYNAMIC_GROUP = 8


class SourcedValue(NamedTuple):
    """A value as text, with its name and source."""

    name: str
    value: str | None
    source: Source


class Endpoint(NamedTuple):
    listener: str
    host: str  # empty for every interface
    port: int


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class BrokerConfig(
    NetworkSettings,
    SecuritySettings,
    ClusterSettings,
    LogSettings,
    GroupSettings,
    ShareGroupSettings,
    TransactionSettings,
    ReplicationSettings,
    MetricsSettings,
    AuthorizationSettings,
    QuotaSettings,
    ArchiveSettings,
):
    """All settings as attributes named as in Kafka, with underscores: `config.num_partitions`."""

    static: Mapping[str, str] = field(default_factory=dict)
    dynamic_default: Mapping[str, str] = field(default_factory=dict)
    dynamic_broker: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = field(default=())  # for the log, once, at start
    of_listeners: Mapping[str, Any] = field(default_factory=dict)  # listener.name.*, parsed

    @classmethod
    def from_values(cls, values: Mapping[str, object] = _NOTHING) -> BrokerConfig:
        """Static settings by Kafka's names; Python values are fine. Raises `ConfigError`."""
        static: dict[str, str] = {}
        warnings: list[str] = []
        for name, value in values.items():
            text = text_of(value)
            if name in BROKER_SETTINGS or name.startswith(LISTENER_PREFIX):
                static[name] = text
                continue
            warning = check_foreign(name)
            if warning is None:
                suggestion = nearest(name, BROKER_SETTINGS)
                raise ConfigError(f"Unknown setting {name!r}.{suggestion}")
            warnings.append(warning)
        return _snapshot(static, {}, {}, tuple(warnings))

    def with_dynamic(
        self, cluster_default: Mapping[str, str], broker: Mapping[str, str]
    ) -> BrokerConfig:
        """The snapshot with these dynamic settings in force. Raises `ConfigError`."""
        if cluster_default == self.dynamic_default and broker == self.dynamic_broker:
            return self
        return _snapshot(self.static, cluster_default, broker, self.warnings)

    # Derived values

    @property
    def id(self) -> int:
        """This broker's id: node.id, or broker.id if only that is set."""
        return (
            self.broker_id if "node.id" not in self.static and self.broker_id >= 0 else self.node_id
        )

    @property
    def zookeeper_connection_seconds(self) -> float:
        """How long a start waits for ZooKeeper."""
        given = self.zookeeper_connection_timeout_ms
        return (self.zookeeper_session_timeout_ms if given is None else given) / 1000

    @property
    def queued_request_bytes_max(self) -> int:
        """queued.max.request.bytes, or our limit where it is left at Kafka's -1."""
        configured = self.queued_max_request_bytes
        return configured if configured >= 0 else QUEUED_REQUEST_BYTES_MAX

    @cached_property
    def connections_per_ip_overrides(self) -> Mapping[str, int]:
        """max.connections.per.ip.overrides, by address."""
        limits: dict[str, int] = {}
        for entry in filter(None, map(str.strip, self.max_connections_per_ip_overrides.split(","))):
            address, colon, limit = entry.rpartition(":")
            if not (address and colon and limit.isdigit()):
                raise ConfigError(
                    f"Invalid value {entry} for configuration max.connections.per.ip.overrides: "
                    "Expected address:number,address:number"
                )
            limits[address.strip("[]")] = int(limit)
        return limits

    @cached_property
    def authentication_delay_exempt(self) -> Container[str]:
        """The hosts of millstream.authentication.delay.exempt. Raises `ConfigError`."""
        texts = self.millstream_authentication_delay_exempt
        if not texts:
            return ()
        from millstream.security.networks import Networks  # only then

        try:
            return Networks(texts)
        except ValueError as error:
            raise ConfigError(
                f"Invalid value {','.join(texts)} for configuration "
                f"millstream.authentication.delay.exempt: {error}"
            ) from None

    @property
    def log_directories(self) -> tuple[Path, ...]:
        return tuple(Path(path) for path in self.log_dirs or self.log_dir)

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """The listeners, without those of controllers."""
        every = _parse_endpoints("listeners", self.listeners)
        return tuple(
            endpoint
            for endpoint in every
            if endpoint.listener not in self.controller_listener_names
        )

    @property
    def advertised_endpoints(self) -> Mapping[str, Endpoint]:
        """Advertised endpoint by listener; by default, the listener's own address."""
        by_listener = {endpoint.listener: endpoint for endpoint in self.endpoints}
        for endpoint in _parse_endpoints("advertised.listeners", self.advertised_listeners or ()):
            if endpoint.listener in by_listener:
                by_listener[endpoint.listener] = endpoint
        return by_listener

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener that brokers use among themselves."""
        if self.inter_broker_listener_name:
            return self.inter_broker_listener_name.upper()
        names = [endpoint.listener for endpoint in self.endpoints]
        if "security.inter.broker.protocol" not in self.static:
            return names[0]
        wanted = SecurityProtocol[self.security_inter_broker_protocol]
        protocols = self.listener_protocols
        found = next((name for name in names if protocols.get(name) is wanted), None)
        if found is None:
            raise ConfigError(
                f"security.inter.broker.protocol is {wanted.name}, but no listener has it: add "
                "one, or set inter.broker.listener.name"
            )
        return found

    @cached_property
    def listener_protocols(self) -> Mapping[str, SecurityProtocol]:
        """The security protocol by listener."""
        return _parse_protocols(self.listener_security_protocol_map)

    def listener_settings(self, listener: str, mechanism: str | None = None) -> SecuritySettings:
        """TLS and authentication of a listener, or of one SASL mechanism there."""
        key = listener, mechanism
        found = self._listener_settings.get(key)
        if found is None:
            found = self._listener_settings[key] = self._find_listener_settings(*key)
        return found

    @cached_property
    def _listener_settings(self) -> dict[tuple[str, str | None], SecuritySettings]:
        """What was asked for: each login needs it."""
        return {}

    def _find_listener_settings(self, listener: str, mechanism: str | None) -> SecuritySettings:
        prefix = f"{LISTENER_PREFIX}{listener.lower()}."
        prefixes = [prefix] if mechanism is None else [f"{prefix}{mechanism.lower()}.", prefix]
        values: dict[str, Any] = {}
        for name in SECURITY_SETTINGS:
            own = next((it + name for it in prefixes if it + name in self.of_listeners), None)
            values[field_name(name)] = (
                getattr(self, field_name(name)) if own is None else self.of_listeners[own]
            )
        if (
            self.listener_protocols.get(listener) is SecurityProtocol.SASL_SSL
            and f"{prefix}ssl.client.auth" not in self.of_listeners
        ):
            values["ssl_client_auth"] = "none"  # as in Kafka (KIP-684)
        return SecuritySettings(**values)

    @property
    def metrics_address(self) -> tuple[str, int] | None:
        """Host and port for metrics; an empty host is every interface. Raises `ConfigError`."""
        text = self.millstream_metrics_listener
        if not text:
            return None
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdigit() or int(port) > 65_535:
            raise ConfigError(
                f"Invalid value {text} for configuration millstream.metrics.listener: write it as "
                "host:port, e.g. 127.0.0.1:9404"
            )
        return host.strip("[]"), int(port)

    # Settings of topics and groups

    def topic_config(self, overrides: Mapping[str, str] = _NOTHING) -> TopicConfig:
        """A topic's settings, its own over the broker's. Raises `ConfigError`."""
        config = self._derive(TopicConfig, TOPIC_SETTINGS, overrides)
        if config.internal_segment_bytes is not None:
            config = dataclasses.replace(config, segment_bytes=config.internal_segment_bytes)
        return config

    def group_config(self, overrides: Mapping[str, str] = _NOTHING) -> GroupConfig:
        """A group's settings, its own over the broker's. Raises `ConfigError`."""
        return self._derive(GroupConfig, GROUP_SETTINGS, overrides)

    def _derive(
        self, family: type[Derived], settings: Mapping[str, Setting], overrides: Mapping[str, str]
    ) -> Derived:
        values: dict[str, Any] = {}
        for name, setting in settings.items():
            if setting.synonyms:
                values[field_name(name)] = self.inherited(setting)
        for name, text in overrides.items():
            values[field_name(name)] = find(settings, name).parse(text)
        return family(**values)

    def inherited(self, setting: Setting) -> Any:
        """The value for a topic or group that does not set it."""
        for synonym in setting.synonyms:
            value = getattr(self, field_name(synonym.name))
            if value is not None:
                return value * synonym.scale if synonym.scale != 1 else value
        return setting.default

    # Sources

    def sources(self, name: str) -> Iterator[SourcedValue]:
        """Every value the broker's setting has, the one in force first."""
        if name in self.dynamic_broker:
            yield SourcedValue(name, self.dynamic_broker[name], Source.DYNAMIC_BROKER)
        if name in self.dynamic_default:
            yield SourcedValue(name, self.dynamic_default[name], Source.DYNAMIC_DEFAULT_BROKER)
        if name in self.static:
            yield SourcedValue(name, self.static[name], Source.STATIC_BROKER)
        if name.startswith(LISTENER_PREFIX):
            return
        default = BROKER_SETTINGS[name].default_text
        if default is not None:
            yield SourcedValue(name, default, Source.DEFAULT)


BROKER_SETTINGS: Mapping[str, Setting] = settings_of(BrokerConfig)
TOPIC_SETTINGS: Mapping[str, Setting] = settings_of(TopicConfig)
GROUP_SETTINGS: Mapping[str, Setting] = settings_of(GroupConfig)
CLIENT_METRICS_SETTINGS: Mapping[str, Setting] = settings_of(ClientMetricsConfig)


def find(settings: Mapping[str, Setting], name: str) -> Setting:
    """The setting of that name. Raises `ConfigError` with a suggestion."""
    setting = settings.get(name)
    if setting is None and settings is BROKER_SETTINGS and name.startswith(LISTENER_PREFIX):
        return find_listener_setting(name).setting
    if setting is None:
        kinds = {
            id(TOPIC_SETTINGS): "topic",
            id(GROUP_SETTINGS): "group",
            id(CLIENT_METRICS_SETTINGS): "client metrics",
        }
        kind = kinds.get(id(settings), "broker")
        raise ConfigError(f"Unknown {kind} config name: {name}.{nearest(name, settings)}")
    return setting


def client_metrics_config(overrides: Mapping[str, str]) -> ClientMetricsConfig:
    """The settings of a subscription to clients' metrics. Raises `ConfigError`."""
    values = {
        field_name(name): find(CLIENT_METRICS_SETTINGS, name).parse(text)
        for name, text in overrides.items()
    }
    config = ClientMetricsConfig(**values)
    parse_match(config.match)
    return config


def check_dynamic(names: Iterable[str], *, per_broker: bool) -> None:
    """Raise `ConfigError` for names that cannot be changed at run time in this way."""
    fixed: list[str] = []
    for name in names:
        find(BROKER_SETTINGS, name)
        if not _is_dynamic(name, per_broker):
            fixed.append(name)
    if fixed:
        raise ConfigError(f"Cannot update these configs dynamically: {', '.join(sorted(fixed))}")


def check_topic(
    config: TopicConfig, archive_path: str | None = None, archive_registry: str | None = None
) -> None:
    """Refuse invalid combinations of topic settings. Raises `ConfigError`."""
    if config.max_compaction_lag_ms < config.min_compaction_lag_ms:
        raise ConfigError(
            f"conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) "
            f"> max.compaction.lag.ms ({config.max_compaction_lag_ms})"
        )
    check_throttled_replicas(
        "leader.replication.throttled.replicas", config.leader_replication_throttled_replicas
    )
    check_throttled_replicas(
        "follower.replication.throttled.replicas", config.follower_replication_throttled_replicas
    )
    check_backlog(config)
    check_excised(config)
    check_archived(config, archive_path, archive_registry)


def check_group(config: BrokerConfig, group: GroupConfig) -> None:
    """Refuse a group's settings beyond the broker's limits. Raises `ConfigError`."""
    for name in _BOUNDED_BY_BROKER:
        value = getattr(group, field_name(name))
        protocol, rest = name.split(".", 1)
        low, high = f"group.{protocol}.min.{rest}", f"group.{protocol}.max.{rest}"
        if value < getattr(config, field_name(low)):
            raise ConfigError(f"{name} must be greater than or equal to {low}")
        if value > getattr(config, field_name(high)):
            raise ConfigError(f"{name} must be less than or equal to {high}")
    for protocol in ("consumer", "share"):
        session = getattr(group, f"{protocol}_session_timeout_ms")
        if session <= getattr(group, f"{protocol}_heartbeat_interval_ms"):
            raise ConfigError(
                f"{protocol}.session.timeout.ms must be greater than "
                f"{protocol}.heartbeat.interval.ms"
            )
    _check_share(config, group)


def _check_share(config: BrokerConfig, group: GroupConfig) -> None:
    share_reset_timestamp_ms(group.share_auto_offset_reset, now_ms=0)
    if group.share_retry_backoff_ms > group.share_retry_backoff_max_ms:
        raise ConfigError(
            f"share.retry.backoff.ms ({group.share_retry_backoff_ms}) must not be greater than "
            f"share.retry.backoff.max.ms ({group.share_retry_backoff_max_ms})"
        )
    topic = group.errors_deadletterqueue_topic_name
    prefix = config.errors_deadletterqueue_topic_name_prefix
    if topic.startswith("__"):
        raise ConfigError(
            "errors.deadletterqueue.topic.name: DLQ topic name must not start with '__'"
        )
    if topic and not topic.startswith(prefix):
        raise ConfigError(
            f"errors.deadletterqueue.topic.name ({topic}) must begin with {prefix!r}, the broker's "
            "errors.deadletterqueue.topic.name.prefix"
        )


_BOUNDED_BY_BROKER = (
    "consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
    "share.assignment.interval.ms",
    "share.delivery.count.limit",
    "share.heartbeat.interval.ms",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.session.timeout.ms",
)


def _is_dynamic(name: str, per_broker: bool) -> bool:
    mode = find(BROKER_SETTINGS, name).mode
    return mode is Mode.CLUSTER_WIDE or (per_broker and mode is Mode.PER_BROKER)


def _snapshot(
    static: Mapping[str, str],
    cluster_default: Mapping[str, str],
    broker: Mapping[str, str],
    warnings: tuple[str, ...],
) -> BrokerConfig:
    values: dict[str, Any] = {}
    of_listeners: dict[str, Any] = {}
    for name, text in {**static, **cluster_default, **broker}.items():
        value = find(BROKER_SETTINGS, name).parse(text)
        if name.startswith(LISTENER_PREFIX):
            of_listeners[name] = value
        else:
            values[field_name(name)] = value
    config = BrokerConfig(
        **values,
        of_listeners=MappingProxyType(of_listeners),
        static=MappingProxyType(dict(static)),
        dynamic_default=MappingProxyType(dict(cluster_default)),
        dynamic_broker=MappingProxyType(dict(broker)),
        warnings=warnings,
    )
    _check_together(config)
    return config


def _check_together(config: BrokerConfig) -> None:
    """Refuse invalid combinations."""
    _ = config.metrics_address  # raises if it is none
    if "node.id" in config.static and config.broker_id >= 0 and config.broker_id != config.node_id:
        raise ConfigError(
            f"broker.id ({config.broker_id}) and node.id ({config.node_id}) differ; remove one"
        )
    check_archive(config)
    if not config.endpoints:
        raise ConfigError(
            "listeners has no listener for clients: add one, such as PLAINTEXT://host:port"
        )
    names = [endpoint.listener for endpoint in config.endpoints]
    if len(set(names)) != len(names):
        raise ConfigError("Each listener must have a different name, listeners: " + ",".join(names))
    _ = config.advertised_endpoints, config.connections_per_ip_overrides
    _ = config.authentication_delay_exempt
    if config.inter_broker_listener_name and "security.inter.broker.protocol" in config.static:
        raise ConfigError(
            "Only one of inter.broker.listener.name and security.inter.broker.protocol should be "
            "set."
        )
    _check_protocols(config, names)
    if config.inter_broker_listener not in names:
        raise ConfigError(
            f"inter.broker.listener.name is {config.inter_broker_listener_name}, which is not in "
            f"listeners ({', '.join(names)})"
        )
    for low, high in _ORDERED:
        if getattr(config, field_name(low)) > getattr(config, field_name(high)):
            raise ConfigError(f"{low} must not be greater than {high}")
    if not any(str(path).strip() for path in config.log_dirs or config.log_dir):
        raise ConfigError("log.dirs is empty: set at least one directory")
    check_authorization(config)


_ORDERED = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"),
)


def _check_protocols(config: BrokerConfig, listeners: list[str]) -> None:
    for name in listeners:
        if name not in config.listener_protocols:
            raise ConfigError(
                f"listener {name} is not in listener.security.protocol.map: add {name}:PLAINTEXT, "
                f"or {name}:SASL_SSL"
            )
        if config.listener_protocols[name].uses_sasl:
            from millstream.config.sasl import check_sasl  # only then

            check_sasl(name, partial(config.listener_settings, name))
    for name in config.of_listeners:
        listener = find_listener_setting(name).listener
        if listener not in listeners and listener not in config.controller_listener_names:
            raise ConfigError(
                f"{name}: there is no listener {listener} in listeners ({', '.join(listeners)})"
            )


def _parse_protocols(text: str) -> Mapping[str, SecurityProtocol]:
    protocols: dict[str, SecurityProtocol] = {}
    for entry in text.split(","):
        if not entry.strip():
            continue
        listener, colon, protocol = (part.strip() for part in entry.partition(":"))
        if not (listener and colon and protocol in SecurityProtocol.__members__):
            raise ConfigError(
                f"Invalid value {entry.strip()} for configuration listener.security.protocol.map: "
                f"Expected NAME:PROTOCOL, with one of {', '.join(SecurityProtocol.__members__)}"
            )
        protocols[listener.upper()] = SecurityProtocol[protocol]
    return MappingProxyType(protocols)


def _parse_endpoints(setting: str, texts: tuple[str, ...]) -> tuple[Endpoint, ...]:
    return tuple(_parse_endpoint(setting, text) for text in texts)


def _parse_endpoint(setting: str, text: str) -> Endpoint:
    listener, separator, address = text.strip().partition("://")
    host, colon, port = address.rpartition(":")
    if not (listener and separator and colon and port.isdigit() and int(port) <= 65535):
        raise ConfigError(
            f"Invalid value {text} for configuration {setting}: Expected NAME://host:port, "
            "for example PLAINTEXT://127.0.0.1:9092"
        )
    return Endpoint(listener.upper(), host.strip("[]"), int(port))
