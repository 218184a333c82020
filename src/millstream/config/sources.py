"""Where a broker's static settings come from.

    load(file, environment, overrides)

Later sources win over earlier ones:

    1. a file           `server.properties` (Java's format), or `*.toml`, where tables nest into
                        dots: `[log.retention] hours = 24` is `log.retention.hours=24`
    2. the environment  MILLSTREAM_LOG_RETENTION_HOURS=24; a setting of our own, whose name begins
                        with `millstream.`, needs that prefix only once: MILLSTREAM_ACKS_ALL_FLUSH
    3. the command line --set log.retention.hours=24, or values given in Python

An unknown name is an error, except in the environment, where another program's variables may have
the same prefix: there it is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from millstream.config.broker import BROKER_SETTINGS, BrokerConfig
from millstream.config.properties import parse_properties
from millstream.config.setting import text_of
from millstream.errors import ConfigError

ENVIRONMENT_PREFIX = "MILLSTREAM_"


def load(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> BrokerConfig:
    """The broker's settings from all sources. Raises `ConfigError` that says what and where."""
    values: dict[str, object] = {}
    if file is not None:
        values.update(read_file(file))
    values.update(from_environment(environment or {}))
    values.update(overrides or {})
    return BrokerConfig.from_values(values)


def read_file(path: Path) -> dict[str, str]:
    """The settings in a properties or (by its name) TOML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot read the settings in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error}") from error
    if path.suffix != ".toml":
        return parse_properties(text)
    import tomllib  # imported only if needed

    try:
        return dict(_flatten("", tomllib.loads(text)))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The settings among environment variables; others are ignored."""
    values: dict[str, str] = {}
    for variable, value in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        name = variable[len(ENVIRONMENT_PREFIX) :].lower().replace("_", ".")
        for candidate in (name, f"millstream.{name}"):
            if candidate in BROKER_SETTINGS:
                values[candidate] = value
                break
    return values


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """`--set name=value` arguments."""
    values: dict[str, str] = {}
    for assignment in assignments:
        name, separator, value = assignment.partition("=")
        if not separator or not name.strip():
            raise ConfigError(f"not a setting: {assignment!r}; write name=value")
        values[name.strip()] = value.strip()
    return values


def _flatten(prefix: str, table: Mapping[str, object]) -> Iterable[tuple[str, str]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flatten(f"{name}.", value)
        else:
            yield name, text_of(value)
