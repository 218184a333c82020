"""What an excision reaches, who removes it there, and what it does not reach."""

from __future__ import annotations

from tools.pictures.layout import heading
from tools.pictures.results import Rows
from tools.pictures.svg import Canvas, Theme

WIDTH, HEIGHT = 910, 330
LEFT, UNIT, BAR = 24, 34, 24
OFFSETS = 9
ALICE = (1, 4, 5)  # her offsets
PLACES = (
    (
        "removed by the brokers",
        (
            "segments, indexes, journal, on every replica",
            "the archive of the topic",
            "dead letters of the records",
            "snapshots of events",
            "output topics of pipelines that are named",
        ),
    ),
    (
        "computed again without them, if named",
        (
            "sinks: tables, search indexes, caches, lakes",
            "pipelines: state, tables, views",
            "and then: free pages, old versions and files",
        ),
    ),
    (
        "not reached: the receipt says so",
        (
            "other copies of consumers",
            "backups, until they expire",
            "free blocks of disks",
        ),
    ),
)


def draw(results: dict[str, Rows], theme: Theme) -> str:
    canvas = Canvas(WIDTH, HEIGHT, theme, "What an excision reaches")
    _log(canvas, 30, "before", gone=False)
    _log(canvas, 96, "after", gone=True)
    notes = (
        (30, "$ millstream excise --topic orders --key alice"),
        (96, "offsets do not change: readers see a gap"),
        (118, "a receipt: what, where, hashes before and after"),
    )
    for y, note in notes:
        canvas.text(LEFT + 470, y, note, color=theme.faint)
    colors = (theme.good, theme.ann, theme.late)
    for index, ((title, lines), color) in enumerate(zip(PLACES, colors, strict=True)):
        x = LEFT + index * 296
        canvas.rect(x, 168, 284, 146, stroke=color, radius=6)
        canvas.text(x + 12, 190, title, color=color, size=12.5, bold=True)
        for number, line in enumerate(lines):
            canvas.text(x + 12, 214 + number * 21, line, size=11.5)
    return canvas.render()


def _log(canvas: Canvas, y: float, name: str, *, gone: bool) -> None:
    theme = canvas.theme
    heading(canvas, LEFT, y, name)
    for offset in range(OFFSETS):
        is_alice = offset in ALICE
        x = LEFT + 80 + offset * (UNIT + 4)
        if is_alice and gone:
            canvas.rect(x, y - 16, UNIT, BAR, stroke=theme.line)
            color = theme.faint
        else:
            canvas.rect(x, y - 16, UNIT, BAR, fill=theme.late if is_alice else theme.bob)
            color = theme.on_mark
        canvas.text(x + UNIT / 2, y, str(offset), color=color, size=11, anchor="middle")
    if not gone:
        text = "records of alice: 1, 4, 5"
        canvas.text(LEFT + 80, y + 26, text, color=theme.late, size=11.5)
