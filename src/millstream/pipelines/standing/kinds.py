"""Kinds of columns that queries can use, and the literals that fit them.

    kind        types                                   literals
    integer     tinyint, smallint, int, bigint          12, -3; 2.5 with <, <=, > and >=
    float       float, double                           2.5, 3, 1e6
    decimal     decimal(p,s)                            19.99, compared exactly
    text        string                                  'bike'
    boolean     boolean                                 TRUE, FALSE
    time        timestamp, timestamp_ntz                '2026-01-31 10:00:00', in UTC without zone
    date        date                                    '2026-01-31'

Values of all kinds but text become numbers: microseconds, days, 0 and 1, decimals without their
point. In comparisons, NaN is
greater than any other number, as in Spark.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


class Decimals(NamedTuple):
    """The kind of a column of decimals: their digits, and how many are after the point."""

    precision: int
    scale: int

    @property
    def is_wide(self) -> bool:
        """Whether they do not fit 64 bits without their point."""
        return self.precision > 18

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


Kind: TypeAlias = Literal["integer", "float", "text", "boolean", "time", "date"] | Decimals
Value: TypeAlias = int | float | str
Numbers: TypeAlias = npt.NDArray[Any]

_LONG_MAX = 2**63 - 1
# No literal is longer than a query.
_EXACT = Context(prec=20_000, Emax=MAX_EMAX, Emin=MIN_EMIN)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LiteralError(Exception):
    """A literal that does not fit its column, and what to write instead."""


def kind_of(found: pa.DataType) -> Kind | None:
    """The kind of a column of this type; None if queries cannot use it."""
    if pa.types.is_boolean(found):
        return "boolean"
    if pa.types.is_signed_integer(found):
        return "integer"
    if pa.types.is_floating(found):
        return "float"
    if pa.types.is_string(found) or pa.types.is_large_string(found):
        return "text"
    if pa.types.is_timestamp(found):
        return "time"
    if pa.types.is_decimal128(found) and found.scale >= 0:
        return Decimals(found.precision, found.scale)
    return "date" if pa.types.is_date32(found) else None


def value_of(kind: Kind, operator: str, literal: str, literal_kind: str) -> Value:
    """The value of a literal beside a column. `literal_kind` is number, string or keyword.
    Raises `LiteralError`."""
    if kind == "text":
        if literal_kind != "string":
            raise LiteralError(f"the column is text: write '{literal}'")
        return literal
    if kind == "boolean":
        if literal_kind != "keyword":
            raise LiteralError("the column is boolean: write TRUE or FALSE")
        return int(literal == "TRUE")
    if kind in ("time", "date"):
        if literal_kind != "string":
            raise LiteralError(f"the column is a {kind}: write it like '2026-01-31'")
        return _moment(kind, literal)
    if literal_kind != "number":
        raise LiteralError("the column is a number: write the value without quotes")
    if isinstance(kind, Decimals):
        return _decimal(kind, operator, literal)
    return _float(literal) if kind == "float" else _integer(operator, literal)


def _moment(kind: Kind, literal: str) -> int:
    try:
        if kind == "date":
            return (date.fromisoformat(literal) - _EPOCH.date()).days
        moment = datetime.fromisoformat(literal)
        if re.search(r"[.,]\d{7}", literal):
            raise LiteralError(f"{literal!r} has more than 6 digits after the point")
    except ValueError:
        example = "2026-01-31" if kind == "date" else "2026-01-31 10:00:00"
        raise LiteralError(f"{literal!r} is no {kind}: write it like '{example}'") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _float(literal: str) -> float:
    value = float(literal)
    if math.isinf(value):
        raise LiteralError(f"{literal} is beyond the range of a double")
    return value + 0.0  # -0.0 is 0.0: the index keeps equal values together


def _integer(operator: str, literal: str) -> int:
    value = _exact(literal, 0)
    if not -_LONG_MAX <= value <= _LONG_MAX:
        raise LiteralError(f"{literal} is beyond the range of 64 bits")
    return _rounded(operator, literal, value, "the column has integers")


def _decimal(kind: Decimals, operator: str, literal: str) -> int:
    """Beyond the range of the column, all literals compare alike with its values."""
    limit: int = 10**kind.precision
    value = _exact(literal, kind.scale)
    if not -limit < value < limit:
        return limit if value > 0 else -limit
    digits = f"the column has {kind.scale} digits after the point"
    return _rounded(operator, literal, value, digits)


def _exact(literal: str, scale: int) -> Decimal:
    """A number times 10 to the power of the scale, without rounding."""
    try:
        return _EXACT.scaleb(_EXACT.create_decimal(literal), scale)
    except ArithmeticError:
        raise LiteralError(f"{literal} is beyond the range of numbers") from None


def _rounded(operator: str, literal: str, value: Decimal, has: str) -> int:
    """The value without a fraction, so that the comparison means the same: x < 2.5 is x < 3."""
    if operator in ("<", ">="):
        return int(value.to_integral_value(ROUND_CEILING))
    floor = value.to_integral_value(ROUND_FLOOR)
    if operator in ("=", "<>", "in") and floor != value:
        raise LiteralError(f"{has}: {literal} is never equal")
    return int(floor)


def numbers_of(column: pa.Array, kind: Kind) -> Numbers:
    """The values of a column as numbers; those of nulls are arbitrary."""
    if isinstance(kind, Decimals):
        return _unscaled(column, kind)
    if kind == "float":
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
        return np.where(np.isnan(numbers), np.inf, numbers)
    if kind == "boolean":
        flags: Numbers = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
        return flags.astype(np.int64)
    if kind == "time":
        unit = pa.timestamp("us", column.type.tz)
        column = column.cast(unit, safe=False).view(pa.int64())
    elif kind == "date":
        column = column.view(pa.int32())
    column = column.cast(pa.int64())
    found: Numbers = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    return found


def number_type(kind: Kind) -> npt.DTypeLike:
    """That of the numbers of a kind; Python's integers are used beyond 64 bits."""
    if isinstance(kind, Decimals) and kind.is_wide:
        return object
    return np.float64 if kind == "float" else np.int64


def _unscaled(column: pa.Array, kind: Decimals) -> Numbers:
    """Decimals without their point, from the two halves in which Arrow has them."""
    start, end = column.offset, column.offset + len(column)
    data = column.buffers()[1] or b""
    low = np.frombuffer(data, np.int64)[2 * start : 2 * end : 2]
    if not kind.is_wide:
        return low
    high = np.frombuffer(data, np.int64)[2 * start + 1 : 2 * end : 2]
    wide: Numbers = high.astype(object) * 2**64 + low.view(np.uint64).astype(object)
    return wide
