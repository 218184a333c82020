"""Columns as text, in Spark's words or SQL's, as an Arrow schema. Pure.

    id bigint, amount decimal(10, 2), at timestamp, lines array<struct<sku: string, count: int>>

The same text describes the rows of a pipeline's topic. `timestamp` is a moment, with a time zone.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from millstream.errors import ConfigError

_SIMPLE = {
    "boolean": pa.bool_(),
    "bool": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "text": pa.string(),
    "void": pa.string(),
    "binary": pa.binary(),
    "blob": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("ns"),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\"|\w+|[<>(),:])")
_DEPTH_MAX = 32


def parse_columns(text: str) -> pa.Schema:
    """The schema; raises `ConfigError` that shows where the text goes wrong."""
    parser = _Parser(text)
    fields = parser.fields(end=None, depth=0)
    names = [field.name.lower() for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"columns {text!r}: {name} occurs twice")
    return pa.schema(fields)


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

    def fields(self, end: str | None, depth: int) -> list[Any]:
        """Fields up to `end`, which is taken, too."""
        if depth > _DEPTH_MAX:
            raise ConfigError(f"columns are nested more than {_DEPTH_MAX} levels deep")
        found = []
        while True:
            name = self._name()
            if self._peek() == ":":
                self._take()
            found.append(pa.field(name, self._type(depth)))
            following = self._take()
            if following == end:
                return found
            if following != ",":
                raise self._unexpected(following, "a comma")

    def _type(self, depth: int) -> Any:
        name = (self._take() or "").lower()
        if name == "array":
            (inner,) = self._parts("<", ">", 1, depth)
            return pa.list_(inner)
        if name == "map":
            key, value = self._parts("<", ">", 2, depth)
            if key != pa.string():
                raise ConfigError(f"columns {self._text!r}: the keys of a map must be strings")
            return pa.map_(key, value)
        if name == "struct":
            opening = self._take()
            if opening not in ("<", "("):
                raise self._unexpected(opening, "struct<name: type>")
            return pa.struct(self.fields(">" if opening == "<" else ")", depth + 1))
        if name in ("decimal", "numeric"):
            return self._decimal()
        if name not in _SIMPLE:
            raise self._unexpected(name or None, "a type such as bigint, double or string")
        return _SIMPLE[name]

    def _parts(self, opening: str, closing: str, count: int, depth: int) -> list[Any]:
        if depth > _DEPTH_MAX:
            raise ConfigError(f"columns are nested more than {_DEPTH_MAX} levels deep")
        parts = []
        for number in range(count):
            self._expect(opening if number == 0 else ",")
            parts.append(self._type(depth + 1))
        self._expect(closing)
        return parts

    def _decimal(self) -> Any:
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
        return pa.decimal128(precision, scale)

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
