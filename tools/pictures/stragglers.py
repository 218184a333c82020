"""What comes out with each event: by the policy for stragglers, and by when results are asked for.

The events are rows, in the order in which they come. Grey is what the watermark has passed.
"""

from __future__ import annotations

from typing import Any

from tools.pictures.events import EVENTS
from tools.pictures.layout import BY_NUMBER, Axis, event_mark, heading, span, sums
from tools.pictures.results import Rows
from tools.pictures.svg import Canvas, Theme

AXIS = Axis(left=60, scale=7.2)
TOP, ROW = 62, 42
LEFT, COLUMN = 398, 180
BOTTOM = TOP + ROW * (len(EVENTS) + 1)
KIND_WORDS = {"preliminary": "so far", "final": "final", "withdrawn": "withdrawn"}


def draw(results: dict[str, Rows], theme: Theme) -> str:
    """The three policies, on tumbling windows of ten minutes."""
    canvas = Canvas(960, BOTTOM + 36, theme, "Twelve events and three policies for stragglers")
    _arrivals(canvas, results)
    late = results["late"]
    _column(canvas, 0, 'stragglers="drop"', results["final"])
    _column(canvas, 1, 'stragglers="divert"', results["final"])
    _column(canvas, 2, 'stragglers="correct"', results["correct"])
    for row in late:
        y = _row_y(row["after"])
        canvas.text(LEFT, y + 4, "late: counted, gone", color=theme.late)
        x = LEFT + COLUMN
        behind = f"{row['_lateness'] / 60:g} min behind"
        canvas.text(x, y - 3, f"late: event {row['number']}, whole,", color=theme.late)
        canvas.text(
            x, y + 12, f"for {row['user']} {span(row)}, {behind}", color=theme.late, size=11
        )
    _foot(canvas)
    return canvas.render()


def draw_emission(results: dict[str, Rows], theme: Theme) -> str:
    """When results come."""
    canvas = Canvas(960, BOTTOM + 36, theme, "Twelve events, and when the results of windows come")
    _arrivals(canvas, results)
    _column(canvas, 0, 'tumbling, "final"', results["final"])
    _column(canvas, 1, 'tumbling, "change"', results["change"])
    _column(canvas, 2, 'session, "change"', results["sessions"])
    _foot(canvas)
    return canvas.render()


def _arrivals(canvas: Canvas, results: dict[str, Rows]) -> None:
    theme = canvas.theme
    heading(canvas, 16, 22, "as they come", "and when they happened")
    marks = {row["number"]: row["_watermark"] for row in results["watermarks"]}
    at_end = max(it.minute for it in EVENTS) - 5
    _staircase(canvas, [*(marks[it.number] for it in EVENTS), at_end])
    AXIS.draw(canvas, TOP, BOTTOM)
    for it in EVENTS:
        y = _row_y(it.number)
        canvas.line(16, y + ROW / 2, 944, y + ROW / 2, color=theme.past)
        canvas.text(24, y + 4, str(it.number), color=theme.faint, anchor="middle")
        event_mark(canvas, AXIS.x(it.minute), y, it)
    canvas.text(16, _row_y(len(EVENTS) + 1) + 4, "then", color=theme.faint)


def _staircase(canvas: Canvas, marks: list[Any]) -> None:
    """The watermark of each batch, and what it has passed."""
    points: list[tuple[float, float]] = []
    for place, minute in enumerate(marks):
        if minute is not None and minute >= 0:
            x, y = AXIS.x(minute), TOP + place * ROW
            points += [(x, y), (x, y + ROW)]
            canvas.rect(AXIS.x(0), y, x - AXIS.x(0), ROW, fill=canvas.theme.past, radius=0)
    canvas.polyline(points, color=canvas.theme.faint)
    x, y = points[-1]
    canvas.text(x + 6, y - 16, "watermark", color=canvas.theme.faint, size=11)


def _column(canvas: Canvas, place: int, name: str, rows: Rows) -> None:
    x = LEFT + place * COLUMN
    canvas.text(x, 22, name, bold=True)
    for number in range(1, len(EVENTS) + 2):
        own = [row for row in rows if row["after"] == number]
        first = _row_y(number) + 4 - (len(own) - 1) * 6.5
        for line, row in enumerate(own):
            _result(canvas, x, first + line * 13, row, is_small=len(own) > 1)


def _result(canvas: Canvas, x: float, y: float, row: dict[str, Any], *, is_small: bool) -> None:
    theme = canvas.theme
    size = 11 if is_small else 12
    canvas.text(x, y, f"{row['user']} {span(row)}", color=theme.of(row["user"]), size=size)
    kind = row["_kind"]
    if kind == "withdrawn":
        canvas.text(x + 76, y, kind, color=theme.late, size=size)
        return
    canvas.text(x + 76, y, sums(row), bold=True, size=size)
    if kind == "correction":
        words = f"was {sums(row['_old'])}" if row["_old"] else "new"
        canvas.text(x + 120, y, words, color=theme.late, size=size)
    else:
        color = theme.good if kind == "final" else theme.faint
        canvas.text(x + 120, y, KIND_WORDS[kind], color=color, size=size)


def _foot(canvas: Canvas) -> None:
    canvas.text(
        16,
        BOTTOM + 22,
        "0–10: the window from 12:00 to 12:10   ·   4 · 10: four events, 10 in all   ·   "
        "the watermark is 5 minutes behind the newest event before",
        color=canvas.theme.faint,
        size=11.5,
    )


def _row_y(number: int) -> float:
    return TOP + (number - 1) * ROW + ROW / 2


assert set(BY_NUMBER) == set(range(1, len(EVENTS) + 1)), "rows are events"
