"""A setting: Kafka's name, a type, bounds, a default and a description.

A family of settings is a dataclass whose fields are declared with the functions below. The field's
name is the setting's name with underscores for dots, so a setting is defined in one place, and the
class is typed:

    @dataclass(frozen=True)
    class LogSettings:
        num_partitions: int = integer(1, low=1, doc="Partitions of a new topic.")

    settings_of(LogSettings)["num.partitions"].parse("12") == 12

Values travel as text (files, environment, the wire, the metadata log) and are parsed once, when a
snapshot of the settings is made. Error messages are Kafka's.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

from millstream.errors import ConfigError

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1

_INTEGER_RANGES = {"SHORT": (-(2**15), 2**15 - 1), "INT": (-(2**31), INT_MAX)}
_LONG_RANGE = (-(2**63), LONG_MAX)


class Kind(IntEnum):
    """Kafka's types of settings, with the numbers that DescribeConfigs gives them."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Mode(Enum):
    """When a broker's setting may change."""

    READ_ONLY = "read-only"  # at the next start
    PER_BROKER = "per-broker"  # at run time, for one broker
    CLUSTER_WIDE = "cluster-wide"  # at run time, for one broker or for all


class Synonym(NamedTuple):
    """A broker's setting that gives another one its default; `scale` converts the unit."""

    name: str
    scale: int = 1


class Setting(NamedTuple):
    """One setting. `default` is None where Kafka has none (null)."""

    kind: Kind
    default: Any
    doc: str
    name: str = ""
    low: float | None = None
    high: float | None = None
    also: tuple[int, ...] = ()  # values allowed outside the bounds, such as -1
    options: tuple[str, ...] = ()
    importance: str = "medium"
    mode: Mode = Mode.READ_ONLY
    synonyms: tuple[Synonym, ...] = ()
    internal: bool = False  # works, but is not described: for tests and experts
    ours: bool = False  # unknown to Kafka 4.3: Millstream's own, or a later Kafka's

    @property
    def sensitive(self) -> bool:
        return self.kind is Kind.PASSWORD

    def parse(self, text: str) -> Any:
        """The typed value. Raises `ConfigError` that names the setting, the value and the rule."""
        text = text.strip()
        match self.kind:
            case Kind.BOOLEAN:
                return self._parse_boolean(text)
            case Kind.INT | Kind.SHORT | Kind.LONG:
                return self._bounded(self._parse_integer(text), text)
            case Kind.DOUBLE:
                return self._bounded(self._parse_double(text), text)
            case Kind.LIST:
                return self._parse_list(text)
        if self.options and text not in self.options:
            raise self._refusal(text, f"String must be one of: {', '.join(self.options)}")
        return text

    def format(self, value: Any) -> str | None:
        """The value as text, as Kafka writes it; None for null."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (tuple, list)):
            return ",".join(value)
        if isinstance(value, frozenset):
            return ",".join(option for option in self.options if option in value)
        if isinstance(value, float):
            return "1.7976931348623157E308" if value > 1e300 else repr(value)
        return str(value)

    @property
    def default_text(self) -> str | None:
        return self.format(self.default)

    def _parse_boolean(self, text: str) -> bool:
        match text.lower():
            case "true":
                return True
            case "false":
                return False
        raise self._refusal(text, "Expected value to be either true or false")

    def _parse_integer(self, text: str) -> int:
        low, high = _INTEGER_RANGES.get(self.kind.name, _LONG_RANGE)
        try:
            value = int(text)
        except ValueError:
            raise self._refusal(text, f"Not a number of type {self.kind.name}") from None
        if not low <= value <= high:
            raise self._refusal(text, f"Not a number of type {self.kind.name}")
        return value

    def _parse_double(self, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise self._refusal(text, "Not a number of type DOUBLE") from None
        if value != value:
            raise self._refusal(text, "Not a number of type DOUBLE")
        return value

    def _parse_list(self, text: str) -> tuple[str, ...] | frozenset[str]:
        items = tuple(item.strip() for item in text.split(",")) if text else ()
        if not self.options:
            return items
        for item in items:
            if item not in self.options:
                raise self._refusal(text, f"String must be one of: {', '.join(self.options)}")
        return frozenset(items) if isinstance(self.default, frozenset) else items

    def _bounded(self, value: float, text: str) -> float:
        if value in self.also:
            return value
        if self.low is not None and value < self.low:
            raise self._refusal(text, f"Value must be at least {self.low}")
        if self.high is not None and value > self.high:
            raise self._refusal(text, f"Value must be no more than {self.high}")
        return value

    def _refusal(self, text: str, rule: str) -> ConfigError:
        shown = "[hidden]" if self.sensitive else text
        return ConfigError(f"Invalid value {shown} for configuration {self.name}: {rule}")


def text_of(value: object) -> str:
    """A Python value as a setting's text: what a TOML file or a keyword argument holds."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(map(str, value))
    return str(value)


def boolean(default: bool, *, doc: str, **options: Any) -> Any:
    return _declare(Kind.BOOLEAN, default, doc, **options)


def integer(default: int | None, *, doc: str, **options: Any) -> Any:
    return _declare(Kind.INT, default, doc, **options)


def short(default: int, *, doc: str, **options: Any) -> Any:
    return _declare(Kind.SHORT, default, doc, **options)


def long(default: int | None, *, doc: str, **options: Any) -> Any:
    return _declare(Kind.LONG, default, doc, **options)


def double(default: float, *, doc: str, **options: Any) -> Any:
    return _declare(Kind.DOUBLE, default, doc, **options)


def string(default: str | None, *, doc: str, **options: Any) -> Any:
    return _declare(Kind.STRING, default, doc, **options)


def password(default: None, *, doc: str, **options: Any) -> Any:
    """A secret: never shown by requests, in errors or in logs."""
    return _declare(Kind.PASSWORD, default, doc, **options)


def java_class(default: str | None, *, doc: str, **options: Any) -> Any:
    """The name of a class of Kafka's, which stands for something that Millstream does."""
    return _declare(Kind.CLASS, default, doc, **options)


def strings(default: tuple[str, ...] | frozenset[str] | None, *, doc: str, **options: Any) -> Any:
    return _declare(Kind.LIST, default, doc, **options)


def _declare(kind: Kind, default: Any, doc: str, **options: Any) -> Any:
    synonyms = tuple(
        Synonym(item) if isinstance(item, str) else Synonym(*item)
        for item in options.pop("synonyms", ())
    )
    setting = Setting(kind, default, doc, synonyms=synonyms, **options)
    return field(default=default, metadata={"setting": setting})


def settings_of(family: type[Any]) -> Mapping[str, Setting]:
    """The settings that a dataclass declares, by Kafka's name, in alphabetical order."""
    found: dict[str, Setting] = {}
    for declared in dataclasses.fields(family):
        setting = declared.metadata.get("setting")
        if setting is not None:
            name = declared.name.replace("_", ".")
            found[name] = setting._replace(name=name)
    return MappingProxyType(dict(sorted(found.items())))


def field_name(setting_name: str) -> str:
    return setting_name.replace(".", "_")


def nearest(name: str, known: Iterable[str]) -> str:
    """' Did you mean ...?' for a name that does not exist, or nothing."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean {close[0]!r}?" if close else ""
