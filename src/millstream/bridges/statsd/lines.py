"""Packets of StatsD and DogStatsD: lines, samples, and what is wrong with a line.

    name:value|type[|@rate][|#tag:value,...][|c:container][|T seconds]

Types: c counter, g gauge (+1 and -1 are changes), ms, h and d timings and distributions, s sets.
DogStatsD's packed values (`n:1:2:3|d`) are several samples. Its events (`_e{`) and service checks
(`_sc`) are counted as lines of another kind.
"""

from __future__ import annotations

from typing import NamedTuple

TYPES = {b"c": "c", b"g": "g", b"ms": "ms", b"h": "h", b"d": "d", b"s": "s"}
NAME_BYTES_MAX = 512
TAGS_BYTES_MAX = 2048
_INFINITE = float("inf")


class Sample(NamedTuple):
    """One value. `tags` are as sent; `value` of a set is text."""

    name: bytes
    type: str
    value: float
    text: bytes = b""
    is_change: bool = False  # of a gauge
    rate: float = 1.0
    tags: bytes = b""


class BadLine(ValueError):
    """A line that is no sample; the message is the reason, for metrics."""


def parse_line(line: bytes) -> list[Sample]:
    """The samples of a line. Raises `BadLine`."""
    head, bar, rest = line.partition(b"|")
    name, colon, values = head.partition(b":")
    if not bar or not colon:
        raise BadLine("event or check" if line[:3] in (b"_e{", b"_sc") else "no type")
    if not name or len(name) > NAME_BYTES_MAX:
        raise BadLine("bad name")
    kind, bar, rest = rest.partition(b"|")
    found = TYPES.get(kind)
    if found is None:
        raise BadLine("unknown type")
    rate, tags = _extensions(rest) if bar else (1.0, b"")
    if found == "s":
        return [Sample(name, found, 0.0, values, tags=tags)]
    return [
        Sample(name, found, _number(it), b"", found == "g" and it[:1] in b"+-", rate, tags)
        for it in values.split(b":")
    ]


def _number(text: bytes) -> float:
    try:
        found = float(text)
    except ValueError:
        raise BadLine("bad value") from None
    if found != found or found in (_INFINITE, -_INFINITE) or b"_" in text or text != text.strip():
        raise BadLine("bad value")
    return found


def _extensions(rest: bytes) -> tuple[float, bytes]:
    rate, tags = 1.0, b""
    for part in rest.split(b"|"):
        if part[:1] == b"@":
            rate = _number(part[1:])
            if not 0 < rate <= 1:
                raise BadLine("bad rate")
        elif part[:1] == b"#":
            tags = part[1:]
            if len(tags) > TAGS_BYTES_MAX:
                raise BadLine("bad tags")
        elif part[:2] != b"c:" and part[:1] != b"T" and part[:2] != b"e:" and part[:5] != b"card:":
            raise BadLine("unknown extension")
    return rate, tags


def tags_of(tags: bytes) -> dict[str, str]:
    """Tags by name; one without a value has an empty one."""
    found = {}
    for part in tags.split(b","):
        if part:
            name, _, value = part.partition(b":")
            found[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return found
