"""OpenTelemetry's metrics, as Kafka's clients encode them, and as nobody should."""

from __future__ import annotations

import contextlib
import random

import pytest

from millstream.broker.telemetry.otlp import POINTS_MAX, TEXT_MAX, MalformedMetrics, Point, decode
from tests.broker.telemetry.pushing import field, gauge, metrics_data, point, total, varint


def test_gauges_and_sums_are_found_with_their_attributes() -> None:
    data = metrics_data(
        gauge("a.b", point(1.5, node="1"), point(-2)),
        total("c", point(7), is_delta=True),
    )
    assert decode(data) == [
        Point("a.b", (("node", "1"),), 1.5, False, False),
        Point("a.b", (), -2, False, False),
        Point("c", (), 7, True, True),
    ]


def test_unknown_fields_and_kinds_are_skipped() -> None:
    histogram = field(1, b"h") + field(9, field(1, point(1.0)))
    extra = varint(99 << 3) + varint(5) + varint(98 << 3 | 5) + b"1234"
    assert decode(metrics_data(histogram, gauge("g", point(1.0) + extra)) + extra) == [
        Point("g", (), 1.0, False, False)
    ]


def test_long_texts_are_cut() -> None:
    (found,) = decode(metrics_data(gauge("n" * 10_000, point(1.0, key="v" * 10_000))))
    assert len(found.name) == len(found.attributes[0][1]) == TEXT_MAX


def test_too_many_values_are_refused() -> None:
    with pytest.raises(MalformedMetrics, match="more than"):
        decode(metrics_data(gauge("g", *[point(1.0)] * (POINTS_MAX + 1))))


@pytest.mark.parametrize(
    "data",
    [b"\x0a\xff\xff\xff\xff\x0f", b"\x0b", b"\xff" * 20, field(1, field(2, field(2, b"\x2a\x05")))],
)
def test_malformed_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMetrics):
        decode(data)


def test_any_bytes_are_decoded_or_refused() -> None:
    chosen = random.Random(714)
    valid = metrics_data(gauge("a", point(1.5, node="1")), total("b", point(3)))
    for _ in range(3000):
        damaged = bytearray(valid)
        for _ in range(chosen.randrange(1, 4)):
            damaged[chosen.randrange(len(damaged))] = chosen.randrange(256)
        with contextlib.suppress(MalformedMetrics):
            decode(bytes(damaged[: chosen.randrange(1, len(damaged) + 1)]))
