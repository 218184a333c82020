"""The archive: where it is, and what topics may set.

Topics use Kafka's names for tiered storage: `remote.storage.enable` archives a topic, and
`local.retention.*` say how much of it stays on the brokers, while `retention.*` apply to all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from millstream.config.columns import Column, parse_columns
from millstream.config.setting import long, password, string
from millstream.config.topic import AS_RETENTION, NO_BOUND, TopicConfig
from millstream.errors import ConfigError

JSON, AVRO, STRING = "json", "avro", "string"
VALUE_SETTING, KEY_SETTING = "millstream.archive.schema", "millstream.archive.key.schema"
S3_PARAMETERS = ("region", "endpoint_override", "scheme", "force_virtual_addressing")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ArchiveSettings:
    """Of a broker."""

    millstream_archive_path: str | None = string(
        None,
        ours=True,
        doc="Where topics with remote.storage.enable are archived as Parquet: a directory, or "
        "s3://bucket/prefix?region=... (also endpoint_override=host:port and scheme=http, for "
        "S3-compatible storage). Credentials come from the environment, as for AWS' own tools. All "
        "brokers of a cluster must use the same place.",
    )
    millstream_archive_schema_registry_url: str | None = string(
        None,
        ours=True,
        doc="The schema registry for topics with millstream.archive.schema=avro, or "
        "millstream.archive.key.schema=avro; several addresses with commas.",
    )
    millstream_archive_schema_registry_user_info: str | None = password(
        None,
        ours=True,
        doc="user:password for the schema registry of the archive.",
    )
    remote_log_manager_task_interval_ms: int = long(
        30_000,
        low=1,
        doc="How often closed segments are archived, and the archive's retention is applied.",
    )

    @property
    def archive_registry(self) -> dict[str, str]:
        """By Confluent's names."""
        named = {
            "schema.registry.url": self.millstream_archive_schema_registry_url,
            "basic.auth.user.info": self.millstream_archive_schema_registry_user_info,
        }
        return {name: value for name, value in named.items() if value is not None}


class ArchiveSchema(NamedTuple):
    """What `millstream.archive.schema` says of a topic's values, or `...key.schema` of its keys."""

    format: str
    columns: tuple[Column, ...] = ()  # of JSON


def parse_archive_schema(text: str, setting: str = VALUE_SETTING) -> ArchiveSchema:
    """Raises `ConfigError`."""
    kind, colon, rest = text.partition(":")
    kind = kind.strip().lower()
    bare = (AVRO, STRING) if setting == KEY_SETTING else (AVRO,)
    if kind in bare and not colon:
        return ArchiveSchema(kind)
    if kind != JSON or not colon:
        known = " or ".join(f"'{it}'" for it in ("json: id bigint, name string", *bare))
        raise ConfigError(f"{setting} is {text[:80]!r}: write {known}")
    columns = parse_columns(rest)
    for column in columns:
        if column.type.uses("time"):
            raise ConfigError(
                f"{setting}: column {column.name}: JSON has no time; declare it string"
            )
    return ArchiveSchema(JSON, columns)


def check_archive(config: ArchiveSettings) -> None:
    """Raises `ConfigError`."""
    if config.millstream_archive_path is not None:
        check_archive_path(config.millstream_archive_path)
    for url in (config.millstream_archive_schema_registry_url or "http://").split(","):
        parts = urlsplit(url.strip())
        if parts.scheme not in ("http", "https") or parts.username or parts.password:
            raise ConfigError(
                "millstream.archive.schema.registry.url must be like http://host:8081; a user goes "
                "to millstream.archive.schema.registry.user.info"
            )


def check_archive_path(path: str) -> None:
    """Raises `ConfigError` if there can be no archive there. Opens nothing."""
    parts = urlsplit(path)
    if "://" not in path or parts.scheme == "file":
        return
    if parts.scheme != "s3":
        raise ConfigError(
            f"millstream.archive.path has the scheme {parts.scheme}; use a directory or s3://"
        )
    if parts.username or parts.password:
        raise ConfigError(
            "millstream.archive.path must not contain credentials: set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or a profile"
        )
    if not parts.hostname:
        raise ConfigError("millstream.archive.path names no bucket: s3://bucket/prefix")
    for name, _ in parse_qsl(parts.query):
        if name not in S3_PARAMETERS:
            raise ConfigError(
                f"millstream.archive.path has the unknown parameter {name}; "
                f"there are {', '.join(S3_PARAMETERS)}"
            )


def check_archived(config: TopicConfig, path: str | None, registry: str | None = None) -> None:
    """Refuse a topic that cannot be archived, as Kafka does. Raises `ConfigError`."""
    for setting, text in (
        (VALUE_SETTING, config.millstream_archive_schema),
        (KEY_SETTING, config.millstream_archive_key_schema),
    ):
        if text and parse_archive_schema(text, setting).format == AVRO and registry is None:
            raise ConfigError(
                f"{setting} is avro: set millstream.archive.schema.registry.url on the brokers"
            )
    if not config.remote_storage_enable:
        return
    if path is None:
        raise ConfigError(
            "Tiered Storage functionality is disabled in the broker. Topic cannot be configured "
            "with remote log storage. Set millstream.archive.path on the brokers."
        )
    for local, total, name in (
        (config.local_retention_ms, config.retention_ms, "retention.ms"),
        (config.local_retention_bytes, config.retention_bytes, "retention.bytes"),
    ):
        if local == AS_RETENTION or total == NO_BOUND:
            continue
        if local == NO_BOUND:
            raise ConfigError(
                f"Invalid value -1 for configuration local.{name}: Value must not be -1 as "
                f"{name} value is set as {total}."
            )
        if local > total:
            raise ConfigError(
                f"Invalid value {local} for configuration local.{name}: Value must not be more "
                f"than {name} property value: {total}"
            )
    _check_copying(config)


def _check_copying(config: TopicConfig) -> None:
    if not config.remote_log_copy_disable:
        return
    for local, total, name in (
        (config.local_retention_bytes, config.retention_bytes, "retention.bytes"),
        (config.local_retention_ms, config.retention_ms, "retention.ms"),
    ):
        if local not in (AS_RETENTION, total):
            raise ConfigError(
                f"When `remote.log.copy.disable` is set to true, the `local.{name}` and `{name}` "
                "must be set to the identical value because there will be no more logs copied to "
                "the remote storage."
            )


def check_disabled(before: TopicConfig, after: TopicConfig) -> None:
    """Refuse to leave an archive behind that nobody tends, as Kafka does (KIP-950). Raises
    `ConfigError`."""
    is_disabled = before.remote_storage_enable and not after.remote_storage_enable
    if is_disabled and not after.remote_log_delete_on_disable:
        raise ConfigError(
            "It is invalid to disable remote storage without deleting remote data. If you want to "
            "keep the remote data and turn to read only, please set "
            "`remote.storage.enable=true,remote.log.copy.disable=true`. If you want to disable "
            "remote storage and delete all remote data, please set "
            "`remote.storage.enable=false,remote.log.delete.on.disable=true`."
        )
