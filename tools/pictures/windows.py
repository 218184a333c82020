"""Which events each kind of window counts together."""

from __future__ import annotations

from typing import Any

from tools.pictures.events import EVENTS
from tools.pictures.layout import BY_NUMBER, Axis, event_mark, heading, sums
from tools.pictures.results import Rows
from tools.pictures.svg import Canvas, Theme

AXIS = Axis(left=92, scale=18.2)
USERS = ("ann", "bob")
BAR, LANE = 18, 23


def draw(results: dict[str, Rows], theme: Theme) -> str:
    canvas = Canvas(930, 726, theme, "Twelve events in tumbling, hopping, session, sliding windows")
    top = 46
    AXIS.draw(canvas, top, 694)
    y = _events(canvas, top + 6)
    y = _bars(canvas, y, results["tumbling"], 'tumbling("10 minutes")', "one after another", 1)
    y = _bars(
        canvas,
        y,
        results["hopping"],
        'hopping("10 minutes", "5 minutes")',
        "one begins every 5 minutes: each event is in two of them",
        2,
    )
    y = _bars(
        canvas, y, results["session"], 'session("5 minutes")', "as long as no gap is longer", 1
    )
    _sliding(canvas, y, results["sliding"])
    canvas.text(16, 714, "4 · 10: four events, 10 in all", color=theme.faint, size=11.5)
    return canvas.render()


def _events(canvas: Canvas, y: float) -> float:
    heading(
        canvas,
        16,
        20,
        "twelve events",
        "of ann and bob, by the time they happened; in them, the amount",
    )
    for lane, user in enumerate(USERS):
        middle = y + 12 + lane * LANE
        canvas.text(80, middle + 4, user, color=canvas.theme.of(user), anchor="end", bold=True)
        for it in EVENTS:
            if it.user == user:
                event_mark(canvas, AXIS.x(it.minute), middle, it)
    return y + 2 * LANE + 24


def _bars(canvas: Canvas, y: float, rows: Rows, name: str, rest: str, depth: int) -> float:
    """Windows as bars; those of one user that overlap are in `depth` lanes, one below another."""
    heading(canvas, 16, y, name, rest)
    top = y + 10
    for lane, user in enumerate(USERS):
        own = sorted((it for it in rows if it["user"] == user), key=lambda it: it["window_start"])
        begin = top + lane * depth * LANE
        canvas.text(80, begin + 13, user, color=canvas.theme.of(user), anchor="end", bold=True)
        for row in own:
            place = 0 if depth == 1 else int(row["window_start"] // 5) % depth
            _bar(canvas, begin + place * LANE, row, canvas.theme.of(user))
    return top + 2 * depth * LANE + 26


def _bar(canvas: Canvas, y: float, row: dict[str, Any], color: str) -> None:
    begin = max(row["window_start"], -0.6)
    x, end = AXIS.x(begin), AXIS.x(row["window_end"])
    canvas.rect(x + 1, y, end - x - 2, BAR, fill=color, opacity=0.18, stroke=color)
    canvas.text((x + end) / 2, y + 13, sums(row), color=color, anchor="middle", bold=True)


def _sliding(canvas: Canvas, y: float, rows: Rows) -> None:
    heading(canvas, 16, y, 'sliding("10 minutes")', "for each event, the ten minutes before it")
    ordered = sorted(rows, key=lambda row: BY_NUMBER[row["number"]].minute)
    for place, row in enumerate(ordered):
        it = BY_NUMBER[row["number"]]
        middle = y + 20 + place * 22
        color = canvas.theme.of(it.user)
        x, end = max(AXIS.x(it.minute - 10), AXIS.x(-0.6)), AXIS.x(it.minute)
        canvas.rect(x, middle - 3, end - x, 6, fill=color, opacity=0.3)
        event_mark(canvas, end, middle, it)
        canvas.text(end + 16, middle + 4, sums(row), color=color, bold=True)
