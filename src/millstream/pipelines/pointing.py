"""Pointing at a place in a text, for errors in patterns, conditions and queries.

point_at("price < < 3", 8)      "    price < < 3\\n            ^"
"""

from __future__ import annotations

_INDENT = " " * 4
_CHARACTERS_MAX = 100
_BEFORE_MAX = 60  # more before the place is cut, so that it is visible
_BEFORE_KEPT = 40
_CUT = "..."


def point_at(text: str, place: int) -> str:
    """The line of the place, and below it a caret."""
    start = text.rfind("\n", 0, place) + 1
    line = text[start:].split("\n", 1)[0].replace("\t", " ")
    at = place - start
    if at > _BEFORE_MAX:
        line, at = _CUT + line[at - _BEFORE_KEPT :], _BEFORE_KEPT + len(_CUT)
    if len(line) > _CHARACTERS_MAX:
        line = line[: _CHARACTERS_MAX - len(_CUT)] + _CUT
    return f"{_INDENT}{line}\n{_INDENT}{' ' * at}^"
