"""Decodes the part of OpenTelemetry's MetricsData that Kafka's clients send.

    MetricsData      resource_metrics = 1
    ResourceMetrics  scope_metrics = 2
    ScopeMetrics     metrics = 2
    Metric           name = 1   gauge = 5   sum = 7
    Gauge            data_points = 1
    Sum              data_points = 1   aggregation_temporality = 2   is_monotonic = 3
    NumberDataPoint  as_double = 4   as_int = 6   attributes = 7
    KeyValue         key = 1   value = 2
    AnyValue         string_value = 1   bool_value = 2   int_value = 3   double_value = 4

Anything else is skipped. The numbers of points and attributes are limited. This is 100 lines; the
package protobuf would be 4 MB in memory, for messages that any client can send.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple, TypeAlias

from millstream.errors import MillstreamError

POINTS_MAX = 2_000
ATTRIBUTES_MAX = 16
TEXT_MAX = 256  # characters of a name or a value

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DELTA = 1
_DOUBLE = Struct("<d")
_SIGNED = Struct("<q")

Value: TypeAlias = "int | memoryview"


class MalformedMetrics(MillstreamError):
    """The bytes are no MetricsData."""


class Point(NamedTuple):
    """One value of a metric."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    value: float
    is_counter: bool
    is_delta: bool  # since the last push, not since the start


def decode(data: bytes) -> list[Point]:
    """All numbers. Raises `MalformedMetrics`."""
    points: list[Point] = []
    try:
        for resource in _messages(memoryview(data), 1):
            for scope in _messages(resource, 2):
                for metric in _messages(scope, 2):
                    points += _metric(metric)
                    if len(points) > POINTS_MAX:
                        raise MalformedMetrics(f"more than {POINTS_MAX} values in one push")
    except (IndexError, ValueError, OverflowError) as error:
        raise MalformedMetrics(f"malformed metrics: {error}") from None
    return points


def _fields(data: memoryview) -> Iterator[tuple[int, int, Value]]:
    """Number, wire type and value of each field."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        value: Value
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
            value, at = data[at : at + size], at + size
        elif kind == _BYTES:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"wire type {kind}")
        if at > end:
            raise ValueError("truncated")
        yield number, kind, value


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _messages(data: memoryview, wanted: int) -> Iterator[memoryview]:
    for number, _, value in _fields(data):
        if number == wanted and isinstance(value, memoryview):
            yield value


def _metric(data: memoryview) -> list[Point]:
    name = ""
    points: list[Point] = []
    for number, _, value in _fields(data):
        if not isinstance(value, memoryview):
            continue
        if number == 1:
            name = _text(value)
        elif number in (5, 7):
            points += _points(value, is_sum=number == 7)
    return [point._replace(name=name) for point in points if name]


def _points(data: memoryview, *, is_sum: bool) -> list[Point]:
    is_delta = is_monotonic = False
    found: list[tuple[tuple[tuple[str, str], ...], float]] = []
    for number, _, value in _fields(data):
        if number == 1 and isinstance(value, memoryview):
            found.append(_point(value))
        elif is_sum and number == 2:
            is_delta = value == _DELTA
        elif is_sum and number == 3:
            is_monotonic = bool(value)
    return [Point("", *point, is_monotonic, is_delta) for point in found]


def _point(data: memoryview) -> tuple[tuple[tuple[str, str], ...], float]:
    number_value: float = 0
    attributes: list[tuple[str, str]] = []
    for number, kind, value in _fields(data):
        if number == 4 and kind == _FIXED64 and isinstance(value, memoryview):
            (number_value,) = _DOUBLE.unpack(value)
        elif number == 6 and kind == _FIXED64 and isinstance(value, memoryview):
            (number_value,) = _SIGNED.unpack(value)
        elif number == 7 and isinstance(value, memoryview) and len(attributes) < ATTRIBUTES_MAX:
            attributes.append(_attribute(value))
    return tuple(attributes), number_value


def _attribute(data: memoryview) -> tuple[str, str]:
    key = text = ""
    for number, _, value in _fields(data):
        if number == 1 and isinstance(value, memoryview):
            key = _text(value)
        elif number == 2 and isinstance(value, memoryview):
            text = _any(value)
    return key, text


def _any(data: memoryview) -> str:
    for number, kind, value in _fields(data):
        if isinstance(value, memoryview):
            if number == 1:
                return _text(value)
            if number == 4 and kind == _FIXED64:
                return repr(_DOUBLE.unpack(value)[0])
        elif number == 2:
            return "true" if value else "false"
        elif number == 3:
            return str(value if value < 1 << 63 else value - (1 << 64))
    return ""


def _text(data: memoryview) -> str:
    return bytes(data[: 4 * TEXT_MAX]).decode("utf-8", "replace")[:TEXT_MAX]
