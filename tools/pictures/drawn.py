"""All pictures, by the name of their file."""

from __future__ import annotations

from tools.pictures import (
    archive,
    backlog,
    bridges,
    clocks,
    derived,
    excision,
    joins,
    patterns,
    stragglers,
    windows,
)
from tools.pictures.results import Rows
from tools.pictures.svg import THEMES

PICTURES = {
    "windows": windows.draw,
    "stragglers": stragglers.draw,
    "emission": stragglers.draw_emission,
    "joins": joins.draw,
    "clocks": clocks.draw,
    "derived": derived.draw,
    "patterns": patterns.draw,
    "backlog": backlog.draw,
    "archive": archive.draw,
    "excision": excision.draw,
    "bridges": bridges.draw,
}


def pictures(results: dict[str, Rows]) -> dict[str, str]:
    return {
        f"{name}-{theme.name}.svg": draw(results, theme)
        for name, draw in PICTURES.items()
        for theme in THEMES
    }
