"""A partition whose older records are in the archive: what is where, and who reads it."""

from __future__ import annotations

from tools.pictures.layout import heading
from tools.pictures.results import Rows
from tools.pictures.svg import Canvas, Theme

WIDTH, HEIGHT = 910, 236
LEFT, UNIT = 24, 8.6  # x = LEFT + UNIT * offset
FILES = ((0, 20), (20, 40), (40, 60), (60, 78))
SEGMENTS = ((40, 60), (60, 78), (78, 100))
ARCHIVE_Y, LOG_Y, BAR = 48, 122, 30


def draw(results: dict[str, Rows], theme: Theme) -> str:
    canvas = Canvas(WIDTH, HEIGHT, theme, "Archive and log of a partition, and where they meet")
    heading(canvas, LEFT, 30, "archive", "Parquet files, listed by one manifest")
    for first, end in FILES:
        _bar(canvas, first, end, ARCHIVE_Y, theme.ann)
    heading(canvas, LEFT, 112, "log", "segments on the broker, as local.retention.* keep them")
    for first, end in SEGMENTS:
        _bar(canvas, first, end, LOG_Y, theme.bob if end < 100 else theme.good)
    canvas.text(_x(89), LOG_Y + 19, "active", color=theme.on_mark, size=11, anchor="middle")
    _offset(canvas, 0, "0, earliest")
    _offset(canvas, 40, "40, earliest-local")
    _offset(canvas, 78, "78, latest-tiered + 1")
    canvas.line(_x(0), 200, _x(40), 200, color=theme.ann, width=3)
    canvas.line(_x(40), 200, _x(100), 200, color=theme.bob, width=3)
    canvas.text(_x(0), 220, "consumers: from the archive,", color=theme.ann, size=11.5)
    canvas.text(_x(40), 220, "then from the log", color=theme.bob, size=11.5)
    canvas.text(
        _x(100), 220, "Spark and query: the archive up to 78, then the log", size=11.5, anchor="end"
    )
    return canvas.render()


def _x(offset: float) -> float:
    return LEFT + UNIT * offset


def _bar(canvas: Canvas, first: int, end: int, y: float, color: str) -> None:
    canvas.rect(_x(first) + 1, y, UNIT * (end - first) - 2, BAR, fill=color, opacity=0.9)
    if end < 100:
        middle = (first + end) / 2
        text = f"{first}–{end - 1}"
        canvas.text(_x(middle), y + 19, text, color=canvas.theme.on_mark, size=11, anchor="middle")


def _offset(canvas: Canvas, offset: int, name: str) -> None:
    canvas.line(_x(offset), ARCHIVE_Y - 4, _x(offset), 172, dashed=True)
    canvas.text(_x(offset) + 4, 172, name, color=canvas.theme.faint, size=11)
