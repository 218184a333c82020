"""JSON as a tree for people: numbers exactly as they were written, duplicate keys kept, and limits
on what is shown, so that a value of millions of elements or of a thousand levels harms nobody.

Browsers turn 12345678901234567890 into 12345678901234567000; here every number stays text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NODES_MAX = 3000
DEPTH_MAX = 100
NESTED_MAX = 400  # functions of Python call themselves for each level
TEXT_MAX = 10_000  # characters of one string
OPEN_DEPTH = 3  # levels that are unfolded at first
OPEN_CHILDREN_MAX = 50


class Number(str):
    """A number as it was written."""


class Pairs(list[tuple[str, Any]]):
    """The members of an object, in order."""


@dataclass(frozen=True, slots=True)
class Node:
    """Part of a tree: `open` and `close` surround the children of an object or array."""

    kind: str  # open, close, string, number, literal, cut
    label: str = ""  # the key or index
    text: str = ""
    path: str = ""
    children: int = 0
    is_array: bool = False
    is_unfolded: bool = False


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


def tree(value: Any) -> list[Node]:
    """The nodes of a parsed (or decoded) value, as many as are shown."""
    nodes: list[Node] = []
    stack: list[Iterator[tuple[str, str, Any]]] = [iter([("", "$", value)])]
    shapes: list[bool] = []
    while stack:
        if len(nodes) >= NODES_MAX:
            nodes.append(Node("cut", text=f"only the first {NODES_MAX} parts are shown"))
            nodes += [Node("close", is_array=is_array) for is_array in reversed(shapes)]
            break
        try:
            label, path, it = next(stack[-1])
        except StopIteration:
            stack.pop()
            if shapes:
                nodes.append(Node("close", is_array=shapes.pop()))
            continue
        children = _children(it, path)
        if children is None:
            nodes.append(_leaf(label, path, it))
        elif len(stack) > DEPTH_MAX:
            nodes.append(Node("cut", label, f"more than {DEPTH_MAX} levels", path))
        else:
            count = len(it)
            is_unfolded = len(stack) <= OPEN_DEPTH and count <= OPEN_CHILDREN_MAX
            is_array = not isinstance(it, dict | Pairs)
            nodes.append(Node("open", label, "", path, count, is_array, is_unfolded))
            stack.append(children)
            shapes.append(is_array)
    return nodes


def _children(value: Any, path: str) -> Iterator[tuple[str, str, Any]] | None:
    if isinstance(value, Pairs):
        return ((name, _member(path, name), it) for name, it in value)
    if isinstance(value, dict):
        return ((str(name), _member(path, str(name)), it) for name, it in value.items())
    if isinstance(value, list | tuple):
        return ((str(index), f"{path}[{index}]", it) for index, it in enumerate(value))
    return None


def _member(path: str, name: str) -> str:
    if name.isidentifier():
        return f"{path}.{name}"
    return f"{path}[{json.dumps(name, ensure_ascii=False)}]"


def _leaf(label: str, path: str, value: Any) -> Node:
    if isinstance(value, Number):
        return Node("number", label, _short(value), path)
    if value is None or isinstance(value, bool):
        return Node("literal", label, json.dumps(value), path)
    if isinstance(value, int | float):
        return Node("number", label, repr(value), path)
    return Node("string", label, _short(str(value)), path)


def _short(text: str) -> str:
    if len(text) <= TEXT_MAX:
        return text
    return f"{text[:TEXT_MAX]}… ({len(text)} characters)"


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
