"""The options of valueFormat avro, for reading and writing; Confluent's names where it has them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from millstream.client.schema_registry import RegistrySettings
from millstream.errors import ConfigError
from millstream.pipelines.options import GivenOptions

REGISTRY_OPTIONS = (
    "schema.registry.url",
    "basic.auth.user.info",
    "bearer.auth.token",
    "schema.registry.ssl.ca.location",
    "schema.registry.ssl.certificate.location",
    "schema.registry.ssl.key.location",
    "schema.registry.ssl.key.password",
    "schema.registry.request.timeout.ms",
)
READ_OPTIONS = ("avroSchema", "avroWriterSchema", *REGISTRY_OPTIONS)
WRITE_OPTIONS = ("avroSchema", "avroSubject", "auto.register.schemas", *REGISTRY_OPTIONS)
# Confluent's longer names for the same.
_WITH_PREFIX = ("basic.auth.user.info", "bearer.auth.token")
PREFIXED_OPTIONS = tuple(f"schema.registry.{it}" for it in _WITH_PREFIX)


@dataclass(frozen=True)
class AvroOptions:
    """What it takes to read or write Avro."""

    schema: str | None = None  # of the reader, or for writing; JSON
    writer_schema: str | None = None  # in reading without a registry, if it is another one
    registry: RegistrySettings | None = None
    subject: str | None = None
    registers: bool = True


def parse_avro_options(given: GivenOptions, value_format: str) -> AvroOptions:
    """Raises `ConfigError`."""
    get = given.get
    named = [it for it in {*READ_OPTIONS, *WRITE_OPTIONS, *PREFIXED_OPTIONS} if get(it) is not None]
    if value_format != "avro":
        if named:
            raise ConfigError(f"{min(named)} makes no sense without valueFormat=avro")
        return AvroOptions()
    registry = _registry(given, named)
    if registry is not None and get("avroWriterSchema") is not None:
        raise ConfigError(
            "avroWriterSchema makes no sense with a schema registry, which has the writers' schemas"
        )
    return AvroOptions(
        schema=_schema_text("avroSchema", get("avroSchema")),
        writer_schema=_schema_text("avroWriterSchema", get("avroWriterSchema")),
        registry=registry,
        subject=get("avroSubject"),
        registers=given.boolean("auto.register.schemas", True),
    )


def _registry(given: GivenOptions, named: list[str]) -> RegistrySettings | None:
    if given.get("schema.registry.url") is None:
        aimless = [it for it in named if it not in ("avroSchema", "avroWriterSchema")]
        if aimless:
            raise ConfigError(f"{min(aimless)} makes no sense without schema.registry.url")
        return None
    patience_ms = given.integer("schema.registry.request.timeout.ms", 1)
    return RegistrySettings.named(given.get, patience_ms)


def _schema_text(option: str, given: str | None) -> str | None:
    """The JSON itself, or what is in the file of that name."""
    if given is None or given.lstrip().startswith(("{", "[", '"')):
        return given
    try:
        return Path(given.removeprefix("file://")).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{option} is neither JSON nor a file that can be read: {given[:100]}: {error.strerror}"
        ) from None
