"""Prometheus' text format 0.0.4, written lazily.

A collector yields families, a family has samples, and `render` writes them in pieces of a few
hundred lines. The event loop can do other work between two pieces, so samples are iterators that
read values when they are written.

    # HELP kafka_log_log_size Bytes of the log.
    # TYPE kafka_log_log_size gauge
    kafka_log_log_size{topic="orders",partition="0"} 4711

Labels are given as written text (`labels(...)`), because one text serves all families of a
partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from millstream.metrics.distribution import Distribution, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LINES_PER_PIECE = 300  # some 0.1 ms

QUANTILES = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)  # Kafka's

Sample: TypeAlias = tuple[str, float]  # what follows the family's name, such as {topic="a"}; value

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})


class Family(NamedTuple):
    """All samples of one name."""

    name: str
    kind: str  # counter, gauge, summary, histogram, untyped
    help: str
    samples: Iterable[Sample]


def counter(name: str, help: str, samples: Iterable[Sample] | float) -> Family:
    return Family(name, "counter", help, _samples(samples))


def gauge(name: str, help: str, samples: Iterable[Sample] | float) -> Family:
    return Family(name, "gauge", help, _samples(samples))


def _samples(samples: Iterable[Sample] | float) -> Iterable[Sample]:
    return (("", samples),) if isinstance(samples, int | float) else samples


def labels(**values: object) -> str:
    """The text of labels in a sample."""
    return label_text(values)


def label_text(values: Mapping[str, object]) -> str:
    """The same, for names that are no Python names."""
    if not values:
        return ""
    return "{" + ",".join(f'{name}="{escape(str(it))}"' for name, it in values.items()) + "}"


def escape(value: str) -> str:
    """The text of a label's value between quotes."""
    return value.translate(_ESCAPES)


def summary_samples(
    labels: str, distribution: Distribution, now: float, *, scale: float = 1, count: float = -1
) -> Iterator[Sample]:
    """The samples of a summary. `count`, if it is known better than from the distribution."""
    inner = labels[1:-1] + "," if labels else ""
    for share, value in zip(QUANTILES, distribution.quantiles(QUANTILES, now), strict=True):
        yield f'{{{inner}quantile="{share}"}}', value * scale
    yield f"_sum{labels}", distribution.sum * scale
    yield f"_count{labels}", distribution.count if count < 0 else count


def histogram_samples(labels: str, histogram: Histogram) -> Iterator[Sample]:
    inner = labels[1:-1] + "," if labels else ""
    seen = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        seen += count
        yield f'_bucket{{{inner}le="{format_value(bound)}"}}', seen
    yield f"_sum{labels}", histogram.sum
    yield f"_count{labels}", seen


def render(families: Iterable[Family]) -> Iterator[str]:
    """The text, in pieces of at most `LINES_PER_PIECE` lines. A family without samples has only
    its comments; one that raises is left out from there on, and the error is the caller's."""
    lines: list[str] = []
    for name, kind, help, samples in families:
        lines.append(f"# HELP {name} {help.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}\n")
        for suffix, value in samples:
            if value.__class__ is int:
                lines.append(f"{name}{suffix} {value}\n")
            else:
                lines.append(f"{name}{suffix} {format_value(value)}\n")
            if len(lines) >= LINES_PER_PIECE:
                yield "".join(lines)
                lines.clear()
    if lines:
        yield "".join(lines)


def format_value(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return repr(float(value)) if isinstance(value, float) else str(int(value))
