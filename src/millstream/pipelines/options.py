"""The user's options of `format("millstream")`, for reading and writing: lookups and checks.

An option that does not exist is refused, with the nearest one that does. `kafka.*` options are
those of a Kafka client; what has no meaning here (a Java keystore, an interceptor) is refused by
name rather than ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from millstream.client.security import KNOWN as SECURITY_SETTINGS
from millstream.client.security import Security
from millstream.errors import ConfigError
from millstream.pipelines.durations import duration_us

# What Java clients and Spark's own connector have, and what to write instead.
_INSTEAD = {
    "kafka.ssl.truststore.password": "no password: kafka.ssl.ca.location is a PEM file",
    "kafka.ssl.keystore.password": "kafka.ssl.key.password",
    "kafka.sasl.kerberos.service.name": "another mechanism: Kerberos is not supported",
    "kafka.auto.offset.reset": "startingOffsets",
    "kafka.key.deserializer": "the columns key and value, which are bytes",
    "kafka.value.deserializer": "valueFormat, or the columns key and value, which are bytes",
    "kafka.enable.auto.commit": "nothing: progress is committed with every batch",
    "kafka.interceptor.classes": "nothing: interceptors are Java classes",
    "kafka.fetch.max.bytes": "kafka.max.partition.fetch.bytes: a task reads one partition",
    "kafka.max.poll.records": "maxOffsetsPerTrigger",
    "kafkaconsumer.polltimeoutms": "kafka.default.api.timeout.ms",
    "fetchoffset.numretries": "kafka.default.api.timeout.ms",
    "fetchoffset.retryintervalms": "kafka.default.api.timeout.ms",
    "groupidprefix": "nothing: readers join no consumer group",
}


class GivenOptions:
    """The user's options, looked up regardless of case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

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

    def one_of(self, name: str, known: Iterable[str], default: str) -> str:
        """In lower case."""
        value = (self.get(name) or default).lower()
        if value not in known:
            raise ConfigError(f"{name} is {value}; it must be one of {', '.join(known)}")
        return value

    def duration_ms(self, name: str) -> int | None:
        """A number without a unit is in milliseconds, as in Spark."""
        text = self.get(name)
        if text is None:
            return None
        if text.strip().isdigit():
            return int(text)
        return duration_us(text, name, zero_allowed=True) // 1000

    def bootstrap_servers(self) -> str:
        servers = self.get("kafka.bootstrap.servers")
        if servers is None:
            raise ConfigError('kafka.bootstrap.servers is missing; write "host:port"')
        return servers

    def security(self) -> Security:
        settings = {
            name: value
            for name in SECURITY_SETTINGS
            if (value := self.get(f"kafka.{name}")) is not None
        }
        return Security.from_settings(settings)


def refuse_unknown(options: Mapping[str, str], known: tuple[str, ...]) -> None:
    """Raises `ConfigError`. Security options need not be among the known ones: all use them."""
    secure = (f"kafka.{it}" for it in SECURITY_SETTINGS)
    by_lower = {name.lower(): name for name in (*known, *secure)}
    for name in options:
        lower = name.lower()
        if lower in by_lower or lower == "path":
            continue
        if lower in _INSTEAD:
            raise ConfigError(f"{name} has no meaning here; use {_INSTEAD[lower]}")
        if f"kafka.{lower}" in by_lower:
            raise ConfigError(f"option {name} is not known; did you mean kafka.{name}?")
        close = get_close_matches(lower, by_lower, n=1)
        hint = f"; did you mean {by_lower[close[0]]}?" if close else ""
        raise ConfigError(f"option {name} is not known{hint}")
