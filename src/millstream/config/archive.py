"""The archive: where it is, and what topics may set.

Topics use Kafka's names for tiered storage: `remote.storage.enable` archives a topic, and
`local.retention.*` say how much of it stays on the brokers, while `retention.*` apply to all of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from millstream.config.setting import long, string
from millstream.config.topic import AS_RETENTION, NO_BOUND, TopicConfig
from millstream.errors import ConfigError

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
    remote_log_manager_task_interval_ms: int = long(
        30_000,
        low=1,
        doc="How often closed segments are archived, and the archive's retention is applied.",
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


def check_archived(config: TopicConfig, path: str | None) -> None:
    """Refuse a topic that cannot be archived, as Kafka does. Raises `ConfigError`."""
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
