"""Which views meet which buys, by each kind of join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.pictures.events import EVENTS, Event
from tools.pictures.layout import BY_NUMBER, LAST_MINUTE, Axis, event_mark, heading
from tools.pictures.results import Rows
from tools.pictures.svg import Canvas, Theme

AXIS = Axis(left=110, scale=16.6)
ARRIVALS = Axis(left=60, scale=60)  # the number of an event for its minute
USERS = ("ann", "bob")
LANE = 27
PANEL = 4 * LANE + 54


def draw(results: dict[str, Rows], theme: Theme) -> str:
    canvas = Canvas(890, 4 * PANEL, theme, "Twelve events in four kinds of joins")
    canvas.text(16, 22, "views are circles, buys are squares, with the number by which they come")
    y = 52.0
    y = _by_time(
        canvas, y, results["interval"], 'interval_join(band="5 minutes")', "near each other"
    )
    y = _by_time(
        canvas,
        y,
        results["as_of"],
        "as_of_join",
        "the buy that was the last when the view happened; a line holds until the next",
        with_spans=True,
    )
    y = _by_arrival(canvas, y, results["enrich"])
    _tables(canvas, y, results["tables"])
    return canvas.render()


def _lane_y(top: float, it: Event) -> float:
    return top + (USERS.index(it.user) * 2 + (it.kind == "buy")) * LANE + LANE / 2


def _lanes(canvas: Canvas, top: float) -> None:
    for place, user in enumerate(USERS):
        y = top + place * 2 * LANE
        color = canvas.theme.of(user)
        canvas.text(16, y + LANE + 4, user, color=color, bold=True)
        canvas.text(48, y + LANE / 2 + 4, "views", color=canvas.theme.faint, size=11)
        canvas.text(48, y + LANE * 1.5 + 4, "buys", color=canvas.theme.faint, size=11)


def _by_time(
    canvas: Canvas, y: float, pairs: Rows, name: str, rest: str, *, with_spans: bool = False
) -> float:
    heading(canvas, 16, y, name, rest)
    top = y + 26
    AXIS.draw(canvas, top, top + 4 * LANE)
    _lanes(canvas, top)
    if with_spans:
        _spans(canvas, top, lambda it: AXIS.x(it.minute), AXIS.x(LAST_MINUTE))
    _pairs(canvas, top, pairs, lambda it: AXIS.x(it.minute))
    return y + PANEL


def _by_arrival(canvas: Canvas, y: float, pairs: Rows) -> float:
    heading(
        canvas, 16, y, "enrich", "the buy that is the last when the view comes: in order of arrival"
    )
    top = y + 14
    _lanes(canvas, top)
    _spans(canvas, top, _arrival_x, ARRIVALS.x(13.4))
    _pairs(canvas, top, pairs, _arrival_x)
    return y + PANEL - 10


def _arrival_x(it: Event) -> float:
    return ARRIVALS.x(it.number)


def _spans(canvas: Canvas, top: float, x_of: Callable[[Event], float], end: float) -> None:
    """How long each buy is the last one of its user."""
    for user in USERS:
        buys = sorted((it for it in EVENTS if it.user == user and it.kind == "buy"), key=x_of)
        for it, following in zip(buys, [*buys[1:], None], strict=True):
            y = _lane_y(top, it)
            until = end if following is None else x_of(following)
            canvas.line(x_of(it), y, until - 2, y, color=canvas.theme.of(user), width=3)


def _pairs(canvas: Canvas, top: float, pairs: Rows, x_of: Callable[[Event], float]) -> None:
    for row in pairs:
        if row["buy"] is not None:
            view, buy = BY_NUMBER[row["view"]], BY_NUMBER[row["buy"]]
            x, y = x_of(view), _lane_y(top, view)
            color = canvas.theme.of(view.user)
            canvas.line(x, y, x_of(buy), _lane_y(top, buy), color=color, width=2)
    alone = {row["view"] for row in pairs if row["buy"] is None}
    for it in EVENTS:
        x, y = x_of(it), _lane_y(top, it)
        if it.number in alone:
            canvas.mark(x, y, str(it.number), canvas.theme.of(it.user), is_hollow=True)
        else:
            event_mark(canvas, x, y, it, by_kind=True)


def _tables(canvas: Canvas, y: float, rows: Rows) -> None:
    heading(
        canvas,
        16,
        y,
        "table_join",
        "of the newest view and the newest buy of each user, as changes",
    )
    top = y + 14
    for it in EVENTS:
        event_mark(canvas, _arrival_x(it), top + 14, it, by_kind=True)
        own = [row for row in rows if row["after"] == it.number]
        own.sort(key=lambda row: row["_weight"])
        for place, row in enumerate(own):
            _change(canvas, _arrival_x(it), top + 44 + place * 17, row)
    canvas.text(
        16,
        top + 94,
        "+ 4 3: view 4 with buy 3 is in the table from now on   ·   − : not any more   ·   "
        "hollow: without a partner",
        color=canvas.theme.faint,
        size=11.5,
    )


def _change(canvas: Canvas, x: float, y: float, row: dict[str, Any]) -> None:
    is_added = row["_weight"] > 0
    color = canvas.theme.good if is_added else canvas.theme.late
    text = f"{'+' if is_added else '−'} {row['view']} {row['buy']}"
    canvas.text(x, y, text, color=color, anchor="middle", bold=True)
