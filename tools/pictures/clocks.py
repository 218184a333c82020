"""Devices whose clocks are wrong: when events happened, by them and by three times."""

from __future__ import annotations

from tools.pictures.events import CLOCKS, EVENTS
from tools.pictures.layout import BY_NUMBER, Axis, heading
from tools.pictures.results import Rows
from tools.pictures.svg import Canvas, Theme

TOP, ROW = 84, 25
BOTTOM = TOP + ROW * len(EVENTS)
AXES = (Axis(left=102, scale=8.2), Axis(left=514, scale=8.2))
TITLES = (("correct_clock", "row by row"), ("correct_device_clocks", "by the device's last rows"))


def draw(results: dict[str, Rows], theme: Theme) -> str:
    canvas = Canvas(910, BOTTOM + 60, theme, "Twelve events of two devices whose clocks are wrong")
    slow, fast = -CLOCKS["ann"].fast_minutes, CLOCKS["bob"].fast_minutes
    canvas.text(
        16,
        22,
        f"ann's clock is {slow} minutes slow, bob's {fast} fast; rows are sent after two minutes "
        "and are one under way, but row 9 ten",
    )
    for axis, (name, rest), key in zip(AXES, TITLES, ("clock", "device_clocks"), strict=True):
        heading(canvas, axis.left - 28, 52, name, rest)
        axis.draw(canvas, TOP, BOTTOM)
        for row in results[key]:
            _row(canvas, axis, row)
    _legend(canvas)
    return canvas.render()


def _row(canvas: Canvas, axis: Axis, row: dict[str, float]) -> None:
    it = BY_NUMBER[int(row["number"])]
    theme, color = canvas.theme, canvas.theme.of(it.user)
    y = TOP + (it.number - 0.5) * ROW
    if axis is AXES[0]:
        canvas.text(50, y + 4, it.user, color=color, anchor="end")
    told, found, received = (axis.x(row[name]) for name in ("told", "event_time", "received"))
    canvas.line(told, y, found, y, color=color)
    canvas.line(received, y - 8, received, y + 8, color=theme.faint, width=2)
    canvas.circle(told, y, 4, fill=theme.page, stroke=color)
    canvas.mark(found, y, str(it.number), color)
    odd = row["_clock"]
    if odd:
        canvas.text(received + 14, y + 4, str(odd), color=theme.late, bold=True)


def _legend(canvas: Canvas) -> None:
    y, theme = BOTTOM + 34, canvas.theme
    canvas.circle(22, y - 4, 4, fill=theme.page, stroke=theme.ink)
    canvas.text(34, y, "by the device's clock", color=theme.faint, size=11.5)
    canvas.mark(190, y - 4, "1", theme.ink)
    canvas.text(206, y, "event_time", color=theme.faint, size=11.5)
    canvas.line(300, y - 12, 300, y + 4, color=theme.faint, width=2)
    canvas.text(310, y, "received, by the server's", color=theme.faint, size=11.5)
    canvas.text(490, y, "jump", color=theme.late, bold=True)
    canvas.text(528, y, "what _clock says is odd about the row", color=theme.faint, size=11.5)
