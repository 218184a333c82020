"""Pictures in the guides: drawn from results, current, used, and fit to be read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tools.pictures.drawn import PICTURES, pictures
from tools.pictures.results import load
from tools.pictures.svg import THEMES, Theme

DOCS = Path(__file__).resolve().parent.parent / "docs"
DRAWN = pictures(load())
SOURCE = re.compile(r'(?:srcset|src)="\.\./images/([\w-]+\.svg)"')
CONTRAST_MIN = 4.5  # of text, by WCAG 2, level AA
NARROWEST = 0.5  # of a letter's width to its height, in the fonts that are asked for


@pytest.mark.parametrize("name", DRAWN)
def test_picture_is_current(name: str) -> None:
    assert (DOCS / "images" / name).read_text(encoding="utf-8") == DRAWN[name], "run `make docs`"


def test_every_picture_is_shown_in_light_and_dark() -> None:
    guides = "".join(it.read_text(encoding="utf-8") for it in (DOCS / "guides").glob("*.md"))
    assert sorted(SOURCE.findall(guides)) == sorted(
        f"{name}-{theme.name}.svg" for name in PICTURES for theme in THEMES
    )


@pytest.mark.parametrize("theme", THEMES, ids=lambda it: it.name)
def test_text_can_be_read_on_its_ground(theme: Theme) -> None:
    for ground in (theme.page, theme.past):
        for ink in (theme.ink, theme.faint, theme.ann, theme.bob, theme.late, theme.good):
            assert contrast(ink, ground) >= CONTRAST_MIN, f"{ink} on {ground}"
    for mark in (theme.ann, theme.bob, theme.ink):
        assert contrast(theme.on_mark, mark) >= CONTRAST_MIN, f"{theme.on_mark} on {mark}"


@pytest.mark.parametrize("name", DRAWN)
def test_nothing_is_drawn_outside(name: str) -> None:
    text = DRAWN[name]
    size = re.search(r'viewBox="0 0 (\d+) (\d+)"', text)
    assert size is not None
    width, height = int(size[1]), int(size[2])
    written = re.findall(
        r'<text x="([\d.-]+)" y="([\d.-]+)" font-size="([\d.]+)" text-anchor="(\w+)"[^>]*>([^<]*)<',
        text,
    )
    assert written
    for x, y, points, anchor, words in written:
        length = len(words) * float(points) * NARROWEST
        left = float(x) - {"start": 0, "middle": length / 2, "end": length}[anchor]
        assert 0 <= left <= left + length <= width, words
        assert 0 <= float(y) <= height, words


def contrast(one: str, two: str) -> float:
    light, dark = sorted((luminance(one), luminance(two)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        it / 12.92 if it <= 0.04045 else ((it + 0.055) / 1.055) ** 2.4 for it in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
