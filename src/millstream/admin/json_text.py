"""JSON for people: indented, numbers exactly as they were written, duplicate keys kept.

Most readers turn 12345678901234567890 into 12345678901234567000, and 1.10 into 1.1; here every
number stays text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

NESTED_MAX = 400  # functions of Python call themselves for each level


class Number(str):
    """A number as it was written."""


class Pairs(list[tuple[str, Any]]):
    """The members of an object, in order."""


def parse_json(text: str | bytes) -> Any:
    """Raises `ValueError`, also for what is nested too deeply to be handled."""
    try:
        found = json.loads(
            text,
            parse_int=Number,
            parse_float=Number,
            parse_constant=Number,
            object_pairs_hook=Pairs,
        )
    except RecursionError:
        found = None
    if (found is None and text.strip() not in ("null", b"null")) or _depth(found) > NESTED_MAX:
        raise ValueError(f"nested in more than {NESTED_MAX} levels")
    return found


def _depth(value: Any) -> int:
    """The number of levels, found level by level."""
    depth = 0
    level = [value]
    while level:
        depth += 1
        following: list[Any] = []
        for it in level:
            if isinstance(it, Pairs):
                following += [member for _, member in it if isinstance(member, list)]
            elif isinstance(it, list):
                following += [member for member in it if isinstance(member, list)]
        level = following
    return depth


def plain(value: Any) -> Any:
    """A parsed value as Python's own types, for programs; the last of duplicate keys counts."""
    if isinstance(value, Number):
        return json.loads(value) if len(value) <= 400 else str(value)
    if isinstance(value, Pairs):
        return {name: plain(it) for name, it in value}
    if isinstance(value, list):
        return [plain(it) for it in value]
    return value


def pretty(value: Any) -> str:
    """Indented JSON text of a parsed or decoded value, numbers as they were written."""
    return "".join(_pretty(value, "\n"))


def _pretty(value: Any, newline: str) -> Iterator[str]:
    if isinstance(value, Number):
        yield value
    elif isinstance(value, Pairs | dict):
        members = value if isinstance(value, Pairs) else list(value.items())
        inner = newline + "  "
        for index, (name, it) in enumerate(members):
            yield "{" if index == 0 else ","
            yield f"{inner}{json.dumps(str(name), ensure_ascii=False)}: "
            yield from _pretty(it, inner)
        yield newline + "}" if members else "{}"
    elif isinstance(value, list | tuple):
        inner = newline + "  "
        for index, it in enumerate(value):
            yield "[" if index == 0 else ","
            yield inner
            yield from _pretty(it, inner)
        yield newline + "]" if value else "[]"
    else:
        yield json.dumps(value, ensure_ascii=False, default=str)
