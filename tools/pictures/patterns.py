"""Which rows a pattern matches, and where the next match may begin in each mode of skipping."""

from __future__ import annotations

from itertools import groupby

from tools.pictures.events import PAYMENTS
from tools.pictures.layout import heading
from tools.pictures.results import HIGH, LOW, SKIPS, Rows
from tools.pictures.svg import Canvas, Theme

LEFT, STEP, LANE = 190, 62, 23
GAP = 12  # below the first match, for the sign
MEANINGS = {
    "past last row": "the next match begins behind this one",
    "to next row": "it may begin at the second row of this one: matches overlap",
    "to first high": "it may begin at the first row of high",
    "to last high": "it may begin at the last row of high",
}


def draw(results: dict[str, Rows], theme: Theme) -> str:
    canvas = Canvas(780, 546, theme, "Matches of low+ high+ in nine rows, by each mode of skipping")
    heading(canvas, 16, 24, 'match("low+ high+")', "low: amount <= 4, high: amount >= 4")
    _rows(canvas, 52)
    y = 116.0
    for skip in SKIPS:
        y = _matches(canvas, y, skip, results[f"skip {skip}"])
    canvas.text(
        16, 532, "▲ where the search goes on after the first match", color=theme.late, size=11.5
    )
    return canvas.render()


def _x(number: int) -> float:
    return LEFT + (number - 1) * STEP


def _rows(canvas: Canvas, y: float) -> None:
    canvas.text(16, y + 4, "amount")
    canvas.text(16, y + 24, "fulfils", color=canvas.theme.faint)
    for number, amount in enumerate(PAYMENTS, 1):
        canvas.mark(_x(number), y, str(amount), canvas.theme.ink)
        fulfilled = [
            name for name, holds in (("low", amount <= LOW), ("high", amount >= HIGH)) if holds
        ]
        text = ", ".join(fulfilled)
        canvas.text(_x(number), y + 24, text, color=canvas.theme.faint, size=11, anchor="middle")


def _matches(canvas: Canvas, y: float, skip: str, rows: Rows) -> float:
    """A lane for each match; returns where the next mode begins."""
    heading(canvas, 16, y, f'skip="{skip}"', MEANINGS[skip])
    top = y + 12
    matches = [list(them) for _, them in groupby(rows, key=lambda it: it["match"])]
    for lane, match in enumerate(matches):
        middle = top + 9 + lane * LANE + (GAP if lane else 0)
        canvas.text(LEFT - 50, middle + 4, f"match {lane + 1}", anchor="end")
        for row in match:
            color = canvas.theme.ann if row["variable"] == "low" else canvas.theme.bob
            x = _x(row["number"])
            canvas.rect(
                x - STEP / 2 + 1, middle - 9, STEP - 2, 18, fill=color, opacity=0.18, stroke=color
            )
            canvas.text(x, middle + 4, row["variable"], color=color, anchor="middle", bold=True)
    x = _x(_next_start(skip, matches[0]))
    canvas.text(x, top + 30, "▲", color=canvas.theme.late, size=11, anchor="middle")
    return top + len(matches) * LANE + GAP + 22


def _next_start(skip: str, match: Rows) -> int:
    """The number of the row at which the search goes on."""
    numbers = [int(it["number"]) for it in match]
    high = [int(it["number"]) for it in match if it["variable"] == "high"]
    return {
        "past last row": numbers[-1] + 1,
        "to next row": numbers[1],
        "to first high": high[0],
        "to last high": high[-1],
    }[skip]
