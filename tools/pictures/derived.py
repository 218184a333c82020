"""Two clients, a database and an index: written twice by the clients, and once through a log.

The steps are those of `examples/derived.py`.
"""

from __future__ import annotations

from typing import NamedTuple

from tools.pictures.layout import heading
from tools.pictures.results import Rows
from tools.pictures.svg import Canvas, Theme

WIDTH, PANEL, LANE, STEP = 910, 455, 46, 46
LEFT = 92


class Write(NamedTuple):
    """A client's write to a system."""

    time: int
    lane: int
    client: str
    value: str


NAMES = {"red": "red shoes", "blue": "blue shoes", "hat": "green hat"}
DUAL = (
    Write(0, 0, "ann", "red"),
    Write(1, 0, "bob", "blue"),
    Write(2, 1, "bob", "blue"),
    Write(3, 1, "ann", "red"),
    Write(4, 0, "bob", "hat"),
)
LOGGED = (
    Write(0, 0, "ann", "red"),
    Write(1, 0, "bob", "blue"),
    Write(2, 0, "bob", "hat"),
    Write(1, 1, "ann", "red"),
    Write(2, 1, "bob", "blue"),
    Write(3, 1, "bob", "hat"),
    Write(1, 2, "ann", "red"),
    Write(4, 2, "bob", "blue"),
    Write(5, 2, "bob", "hat"),
)


def draw(results: dict[str, Rows], theme: Theme) -> str:
    canvas = Canvas(WIDTH, 272, theme, "Dual writes drift apart; readers of one log do not")
    _dual(canvas)
    _logged(canvas)
    _legend(canvas)
    return canvas.render()


def _dual(canvas: Canvas) -> None:
    heading(canvas, 16, 24, "dual writes", "each client writes to both systems")
    lanes = ("database", "index")
    _lanes(canvas, 0, lanes, 5)
    for write in DUAL:
        _mark(canvas, 0, write)
    x, y = _place(0, Write(5, 1, "bob", "hat"))
    canvas.text(x - 5, y + 5, "×", color=canvas.theme.late, size=18, bold=True)
    canvas.text(x, y + 22, "crash", color=canvas.theme.late, size=11, anchor="middle")
    _state(canvas, 16, 196, "database", ("blue", "hat"), canvas.theme.late)
    _state(canvas, 16, 216, "index", ("red",), canvas.theme.late)
    canvas.text(330, 206, "different forever", color=canvas.theme.late, bold=True)


def _logged(canvas: Canvas) -> None:
    heading(canvas, PANEL + 16, 24, "through the log", "each system applies it in its order")
    _lanes(canvas, PANEL, ("log", "database", "index"), 6)
    for write in LOGGED:
        _mark(canvas, PANEL, write)
    x, y = _place(PANEL, Write(2, 2, "bob", "blue"))
    canvas.text(x - 5, y + 5, "×", color=canvas.theme.late, size=18, bold=True)
    canvas.line(x + 12, y, x + STEP * 2 - 12, y, color=canvas.theme.late, dashed=True)
    theme = canvas.theme
    canvas.text(x + STEP, y - 8, "killed, restarted", color=theme.late, size=11, anchor="middle")
    _state(canvas, PANEL + 16, 196, "database", ("blue", "hat"), canvas.theme.good)
    _state(canvas, PANEL + 16, 216, "index", ("blue", "hat"), canvas.theme.good)
    canvas.text(PANEL + 330, 206, "equal", color=canvas.theme.good, bold=True)


def _lanes(canvas: Canvas, left: float, names: tuple[str, ...], steps: int) -> None:
    for number, name in enumerate(names):
        y = 58 + number * LANE
        canvas.text(left + LEFT - 14, y + 4, name, anchor="end")
        canvas.line(left + LEFT, y, left + LEFT + 18 + steps * STEP + 30, y)


def _place(left: float, write: Write) -> tuple[float, float]:
    return left + LEFT + 22 + write.time * STEP, 58 + write.lane * LANE


def _mark(canvas: Canvas, left: float, write: Write) -> None:
    x, y = _place(left, write)
    canvas.mark(x, y, write.client[0].upper(), canvas.theme.of(write.client))
    canvas.text(x, y + 20, write.value, color=canvas.theme.faint, size=11, anchor="middle")


def _state(
    canvas: Canvas, x: float, y: float, system: str, values: tuple[str, ...], color: str
) -> None:
    canvas.text(x + 62, y, system, anchor="end")
    canvas.text(x + 74, y, ", ".join(NAMES[it] for it in values), color=color)


def _legend(canvas: Canvas) -> None:
    y, theme = 256, canvas.theme
    canvas.mark(24, y - 4, "A", theme.ann)
    canvas.text(40, y, "written by Ann", color=theme.faint, size=11.5)
    canvas.mark(150, y - 4, "B", theme.bob)
    canvas.text(166, y, "written by Bob", color=theme.faint, size=11.5)
    canvas.text(290, y, "time runs from left to right", color=theme.faint, size=11.5)
