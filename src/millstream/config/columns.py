"""Columns as text, in Spark's words or SQL's. Pure: `archive/typed.py` makes Arrow's types of them.

    id bigint, amount decimal(10, 2), at timestamp, lines array<struct<sku: string, count: int>>

The same text describes the rows of a pipeline's topic. `timestamp` is a moment, with a time zone.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from millstream.errors import ConfigError

_SIMPLE = {
    "boolean": "boolean",
    "bool": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "string": "string",
    "varchar": "string",
    "text": "string",
    "void": "string",
    "binary": "binary",
    "blob": "binary",
    "date": "date",
    "time": "time",
    "timestamp": "timestamp",
    "timestamptz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\"|\w+|[<>(),:])")
_DEPTH_MAX = 32


class ColumnType(NamedTuple):
    """One of the types above, or decimal, array, map (its keys are strings), struct."""

    kind: str
    precision: int = 0  # of decimals
    scale: int = 0
    fields: tuple[Column, ...] = ()  # of structs; of arrays and maps one, without a name

    def uses(self, kind: str) -> bool:
        return self.kind == kind or any(it.type.uses(kind) for it in self.fields)


class Column(NamedTuple):
    name: str
    type: ColumnType


def parse_columns(text: str) -> tuple[Column, ...]:
    """Raises `ConfigError` that shows where the text goes wrong."""
    columns = _Parser(text).fields(end=None, depth=0)
    names = [column.name.lower() for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"columns {text!r}: {name} occurs twice")
    return columns


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            if match is None:
                raise ConfigError(f"columns {text!r}: unexpected {stripped[position:].strip()!r}")
            self._tokens.append(match[1])
            position = match.end()
        self._next = 0

    def fields(self, end: str | None, depth: int) -> tuple[Column, ...]:
        """Fields up to `end`, which is taken, too."""
        if depth > _DEPTH_MAX:
            raise ConfigError(f"columns are nested more than {_DEPTH_MAX} levels deep")
        found: list[Column] = []
        while True:
            name = self._name()
            if self._peek() == ":":
                self._take()
            found.append(Column(name, self._type(depth)))
            following = self._take()
            if following == end:
                return tuple(found)
            if following != ",":
                raise self._unexpected(following, "a comma")

    def _type(self, depth: int) -> ColumnType:
        name = (self._take() or "").lower()
        if name == "array":
            (inner,) = self._parts("<", ">", 1, depth)
            return ColumnType("array", fields=(Column("", inner),))
        if name == "map":
            key, value = self._parts("<", ">", 2, depth)
            if key.kind != "string":
                raise ConfigError(f"columns {self._text!r}: the keys of a map must be strings")
            return ColumnType("map", fields=(Column("", value),))
        if name == "struct":
            opening = self._take()
            if opening not in ("<", "("):
                raise self._unexpected(opening, "struct<name: type>")
            fields = self.fields(">" if opening == "<" else ")", depth + 1)
            return ColumnType("struct", fields=fields)
        if name in ("decimal", "numeric"):
            return self._decimal()
        if name not in _SIMPLE:
            raise self._unexpected(name or None, "a type such as bigint, double or string")
        return ColumnType(_SIMPLE[name])

    def _parts(self, opening: str, closing: str, count: int, depth: int) -> list[ColumnType]:
        if depth > _DEPTH_MAX:
            raise ConfigError(f"columns are nested more than {_DEPTH_MAX} levels deep")
        parts = []
        for number in range(count):
            self._expect(opening if number == 0 else ",")
            parts.append(self._type(depth + 1))
        self._expect(closing)
        return parts

    def _decimal(self) -> ColumnType:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._take()
            precision = self._number()
            if self._peek() == ",":
                self._take()
                scale = self._number()
            self._expect(")")
        if not 0 <= scale <= precision <= 38 or precision == 0:
            raise ConfigError(f"columns {self._text!r}: no decimal({precision}, {scale})")
        return ColumnType("decimal", precision, scale)

    def _number(self) -> int:
        token = self._take()
        if token is None or not token.isdigit():
            raise self._unexpected(token, "a number")
        return int(token)

    def _name(self) -> str:
        token = self._take()
        if token is None or token in "<>(),:":
            raise self._unexpected(token, "the name of a column")
        if token[0] in '`"':
            return token[1:-1].replace(token[0] * 2, token[0])
        return token

    def _expect(self, expected: str) -> None:
        token = self._take()
        if token != expected:
            raise self._unexpected(token, repr(expected))

    def _peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self) -> str | None:
        token = self._peek()
        self._next += 1
        return token

    def _unexpected(self, token: str | None, expected: str) -> ConfigError:
        found = "the end" if token is None else repr(token)
        return ConfigError(
            f"columns {self._text!r}: {found} where {expected} is expected; write them like "
            "'id bigint, name string'"
        )
