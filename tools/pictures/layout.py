"""What several pictures have in common: an axis of time, lanes, and how results are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tools.pictures.events import EVENTS, Event
from tools.pictures.svg import Canvas

LAST_MINUTE = 45
BY_NUMBER = {it.number: it for it in EVENTS}


@dataclass(frozen=True)
class Axis:
    """Minutes after noon, from left to right."""

    left: float
    scale: float  # points for a minute

    def x(self, minute: float) -> float:
        return self.left + minute * self.scale

    @property
    def right(self) -> float:
        return self.x(LAST_MINUTE)

    def draw(self, canvas: Canvas, top: float, bottom: float) -> None:
        for minute in range(0, LAST_MINUTE + 1, 10):
            x = self.x(minute)
            canvas.line(x, top, x, bottom, dashed=True)
            canvas.text(
                x, top - 5, f"12:{minute:02}", color=canvas.theme.faint, size=11, anchor="middle"
            )


def heading(canvas: Canvas, x: float, y: float, name: str, rest: str = "") -> None:
    canvas.text(x, y, name, bold=True, size=13)
    if rest:
        canvas.text(x + 8 * len(name) + 10, y, rest, color=canvas.theme.faint)


def event_mark(canvas: Canvas, x: float, y: float, event: Event, *, by_kind: bool = False) -> None:
    text = str(event.number if by_kind else event.amount)
    is_square = by_kind and event.kind == "buy"
    canvas.mark(x, y, text, canvas.theme.of(event.user), is_square=is_square)


def sums(row: Mapping[str, Any]) -> str:
    """`n` events, `total` in all."""
    return f"{row['n']} · {row['total']}"


def span(row: Mapping[str, Any]) -> str:
    return f"{row['window_start']:g}–{row['window_end']:g}"
