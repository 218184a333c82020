"""Schemas as text, as in Spark: `city string, price decimal(10,2), seller struct<name: string>`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

from millstream.errors import ConfigError

DEPTH_MAX = 16  # of structs
DIGITS_MAX = 38  # of decimals, as in Spark
_PLAIN: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_TOKEN = re.compile(r"\s*(?:(?P<quoted>`[^`]+`)|(?P<word>\w+)|(?P<mark>[<>(),:]))")


def parse_schema(text: str) -> pa.Schema:
    """The schema of events. Raises `ConfigError`."""
    return pa.schema(_Parser(text).parse())


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, int]] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            found = _TOKEN.match(text, place)
            if found is None:
                raise ConfigError(f"schema: unexpected {text[place:].lstrip()[:1]!r}")
            self._tokens.append((found[0].strip(), found.start(str(found.lastgroup))))
            place = found.end()
        self._tokens.append(("", end))
        self._at = 0

    def parse(self) -> list[pa.Field]:
        fields = self._fields(0)
        if self._next:
            raise self._error(self._at)
        return fields

    @property
    def _next(self) -> str:
        return self._tokens[self._at][0]

    def _take(self, mark: str) -> bool:
        if self._next != mark:
            return False
        self._at += 1
        return True

    def _error(self, first: int) -> ConfigError:
        start = self._tokens[first][1]
        part = re.split(r"[,<>]", self._text[start:], maxsplit=1)[0].strip()
        return ConfigError(
            f"schema: {part!r} is no column; write a name and one of {', '.join(_PLAIN)}, "
            "decimal(10,2), struct<name: type>: category string, price double"
        )

    def _fields(self, depth: int) -> list[pa.Field]:
        if depth > DEPTH_MAX:
            raise ConfigError(f"schema: more than {DEPTH_MAX} structs inside one another")
        fields = [self._field(depth)]
        while self._take(","):
            fields.append(self._field(depth))
        return fields

    def _field(self, depth: int) -> pa.Field:
        first, name = self._at, self._next
        if not name or name in "<>(),:":
            raise self._error(first)
        self._at += 1
        self._take(":")
        kind = self._next.lower()
        self._at += bool(kind)
        if kind in ("decimal", "dec", "numeric"):
            return pa.field(name.strip("`"), self._decimal(first))
        if kind == "struct" and self._take("<"):
            inner = self._fields(depth + 1)
            if not self._take(">"):
                raise ConfigError("schema: > expected after the fields of a struct")
            return pa.field(name.strip("`"), pa.struct(inner))
        if kind not in _PLAIN:
            raise self._error(first)
        return pa.field(name.strip("`"), _PLAIN[kind])

    def _decimal(self, first: int) -> pa.DataType:
        digits = [10, 0]  # as in Spark
        if self._take("("):
            digits = [self._number(first), 0]
            if self._take(","):
                digits[1] = self._number(first)
            if not self._take(")"):
                raise self._error(first)
        precision, scale = digits
        if not 1 <= precision <= DIGITS_MAX or scale > precision:
            raise ConfigError(
                f"schema: decimal({precision},{scale}) must have 1 to {DIGITS_MAX} digits, and not "
                "more after the point"
            )
        return pa.decimal128(precision, scale)

    def _number(self, first: int) -> int:
        found = self._next
        if not re.fullmatch("[0-9]{1,3}", found):
            raise self._error(first)
        self._at += 1
        return int(found)
