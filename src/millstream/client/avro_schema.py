"""Avro's schemas, parsed from JSON as the specification says (1.12).

Names are full names; a reference to a named type is the type itself, so a type may contain itself.
A logical type that does not fit what it annotates is ignored, as the specification asks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from millstream.errors import ConfigError

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NO_DEFAULT = object()
UUID_BYTES = 16
_LOGICAL_TYPES = {
    "date": ("int",),
    "time-millis": ("int",),
    "time-micros": ("long",),
    "timestamp-millis": ("long",),
    "timestamp-micros": ("long",),
    "timestamp-nanos": ("long",),
    "local-timestamp-millis": ("long",),
    "local-timestamp-micros": ("long",),
    "local-timestamp-nanos": ("long",),
    "decimal": ("bytes", "fixed"),
    "uuid": ("string", "fixed"),
}


class BadSchema(ConfigError):
    """What was given is no Avro schema."""


@dataclass(eq=False)
class AvroType:
    """A schema, or a part of one."""

    kind: str  # a primitive type, or record, enum, fixed, array, map, union
    name: str = ""  # full, of a named type
    aliases: tuple[str, ...] = ()
    logical: str = ""
    precision: int = 0  # of decimals
    scale: int = 0
    size: int = 0  # of a fixed
    symbols: tuple[str, ...] = ()
    default: Any = NO_DEFAULT  # of an enum
    fields: list[AvroField] = field(default_factory=list)
    items: list[AvroType] = field(default_factory=list)  # of array and map one; branches of a union

    @property
    def short_name(self) -> str:
        return self.name.rpartition(".")[2]

    def __str__(self) -> str:
        if self.kind == "union":
            return f"a union of {', '.join(map(str, self.items))}"
        what = f"{self.kind} {self.short_name}" if self.name else self.kind
        if self.logical == "decimal":
            return f"{what} decimal({self.precision},{self.scale})"
        return f"{what} {self.logical}".rstrip()


@dataclass(eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    default: Any = NO_DEFAULT


def parse_schema(text: str, references: Iterable[str] = ()) -> AvroType:
    """The schema in `text`, which may name types of the schemas in `references`.

    Raises `BadSchema`.
    """
    parser = _Parser()
    for other in references:
        parser.parse_text(other)
    return parser.parse_text(text)


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def parse_text(self, text: str) -> AvroType:
        try:
            given = json.loads(text)
        except ValueError as error:
            raise BadSchema(f"an Avro schema is not JSON: {error}: {text[:80]}") from None
        try:
            return self.parse(given, "")
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadSchema(f"an Avro schema lacks what it needs: {error!r}: {text[:80]}") from None

    def parse(self, given: Any, namespace: str) -> AvroType:
        if isinstance(given, str):
            return self._by_name(given, namespace)
        if isinstance(given, list):
            return self._union([self.parse(it, namespace) for it in given])
        kind = given["type"]
        if not isinstance(kind, str):
            return self.parse(kind, namespace)
        match kind:
            case "record" | "error":
                return self._record(given, namespace)
            case "enum" | "fixed":
                return self._leaf(given, namespace)
            case "array":
                return AvroType("array", items=[self.parse(given["items"], namespace)])
            case "map":
                return AvroType("map", items=[self.parse(given["values"], namespace)])
            case _ if kind in PRIMITIVES:
                return _with_logical(AvroType(kind), given)
            case _:
                return self._by_name(kind, namespace)

    def _by_name(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        for full in (_full_name(name, namespace), name):
            if full in self._named:
                return self._named[full]
        raise BadSchema(f"an Avro schema names the type {name}, which it does not define")

    def _union(self, branches: list[AvroType]) -> AvroType:
        kinds = [it.name or it.kind for it in branches]
        if len(set(kinds)) < len(kinds) or "union" in kinds:
            raise BadSchema(f"an Avro union has two branches of a kind: {', '.join(kinds)}")
        return AvroType("union", items=branches)

    def _define(self, given: Any, namespace: str) -> tuple[AvroType, str]:
        """The named type, known from now on, and the namespace within it."""
        name = _full_name(given["name"], given.get("namespace", namespace))
        if name in self._named or name in PRIMITIVES:
            raise BadSchema(f"an Avro schema defines {name} twice")
        within = name.rpartition(".")[0]
        aliases = tuple(_full_name(it, within) for it in given.get("aliases", ()))
        kind = "record" if given["type"] == "error" else given["type"]
        defined = self._named[name] = AvroType(kind, name, aliases)
        return defined, within

    def _record(self, given: Any, namespace: str) -> AvroType:
        record, within = self._define(given, namespace)
        for it in given["fields"]:
            record.fields.append(
                AvroField(
                    it["name"],
                    self.parse(it["type"], within),
                    tuple(it.get("aliases", ())),
                    it.get("default", NO_DEFAULT),
                )
            )
        names = [it.name for it in record.fields]
        if len(set(names)) < len(names):
            raise BadSchema(f"the Avro record {record.name} has two fields of one name")
        return record

    def _leaf(self, given: Any, namespace: str) -> AvroType:
        leaf, _ = self._define(given, namespace)
        if leaf.kind == "fixed":
            leaf.size = int(given["size"])
            if leaf.size < 0:
                raise BadSchema(f"the Avro fixed {leaf.name} has a negative size")
            return _with_logical(leaf, given)
        leaf.symbols = tuple(given["symbols"])
        leaf.default = given.get("default", NO_DEFAULT)
        return leaf


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _with_logical(plain: AvroType, given: Any) -> AvroType:
    logical = given.get("logicalType", "")
    if plain.kind not in _LOGICAL_TYPES.get(logical, ()):
        return plain
    if logical == "uuid" and plain.kind == "fixed" and plain.size != UUID_BYTES:
        return plain
    if logical == "decimal":
        precision, scale = given.get("precision", 0), given.get("scale", 0)
        if not (isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision):
            return plain
        if precision == 0:
            return plain
        plain.precision, plain.scale = precision, scale
    plain.logical = logical
    return plain
