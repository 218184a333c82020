"""Shapes and text as SVG, in the colours of a theme. Numbers are rounded: files are compared."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape

FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif"


@dataclass(frozen=True)
class Theme:
    """Colours that can be read on the page they are on."""

    name: str
    page: str
    ink: str  # text
    faint: str  # text that is less important
    line: str  # axes and frames
    past: str  # behind the watermark
    ann: str
    bob: str
    on_mark: str  # text on marks of ann and bob
    late: str
    good: str

    def of(self, user: str) -> str:
        return {"ann": self.ann, "bob": self.bob}[user]


LIGHT = Theme(
    name="light",
    page="#ffffff",
    ink="#1f2328",
    faint="#59636e",
    line="#c4cbd2",
    past="#eceff2",
    ann="#0b5cad",
    bob="#a84300",
    on_mark="#ffffff",
    late="#b3122a",
    good="#1a6b35",
)
DARK = Theme(
    name="dark",
    page="#0d1117",
    ink="#e6edf3",
    faint="#9aa5b1",
    line="#3d4650",
    past="#1b222b",
    ann="#6cb6ff",
    bob="#f69d50",
    on_mark="#0d1117",
    late="#ff8e8e",
    good="#6bd28a",
)
THEMES = (LIGHT, DARK)


@dataclass
class Canvas:
    width: int
    height: int
    theme: Theme
    title: str  # for who does not see it
    _parts: list[str] = field(default_factory=list)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        color: str = "",
        size: float = 12,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self._parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" text-anchor="{anchor}"{weight} '
            f'fill="{color or self.theme.ink}">{escape(text, quote=False)}</text>'
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        color: str = "",
        width: float = 1,
        dashed: bool = False,
    ) -> None:
        dash = ' stroke-dasharray="3 3"' if dashed else ""
        self._parts.append(
            f'<line x1="{_n(x1)}" y1="{_n(y1)}" x2="{_n(x2)}" y2="{_n(y2)}" '
            f'stroke="{color or self.theme.line}" stroke-width="{_n(width)}"{dash}/>'
        )

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        *,
        fill: str = "none",
        stroke: str = "none",
        opacity: float = 1,
        radius: float = 3,
    ) -> None:
        self._parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
            f'rx="{_n(radius)}" fill="{fill}" fill-opacity="{_n(opacity)}" stroke="{stroke}"/>'
        )

    def polyline(self, points: list[tuple[float, float]], *, color: str, width: float = 2) -> None:
        placed = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._parts.append(
            f'<polyline points="{placed}" fill="none" stroke="{color}" stroke-width="{_n(width)}"/>'
        )

    def circle(self, x: float, y: float, radius: float, *, fill: str, stroke: str = "none") -> None:
        self._parts.append(
            f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}" fill="{fill}" stroke="{stroke}" '
            'stroke-width="1.5"/>'
        )

    def mark(
        self,
        x: float,
        y: float,
        text: str,
        color: str,
        *,
        is_square: bool = False,
        is_hollow: bool = False,
    ) -> None:
        """An event: a circle or a square, with something in it."""
        fill, ink = (self.theme.page, color) if is_hollow else (color, self.theme.on_mark)
        if is_square:
            self.rect(x - 8.5, y - 8.5, 17, 17, fill=fill, stroke=color)
        else:
            self.circle(x, y, 9, fill=fill, stroke=color)
        self.text(x, y + 3.8, text, color=ink, size=10.5, anchor="middle", bold=True)

    def render(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" font-family="{FONT}" role="img">'
        )
        page = f'<rect width="100%" height="100%" rx="6" fill="{self.theme.page}"/>'
        return "\n".join(
            [head, f"<title>{escape(self.title)}</title>", page, *self._parts, "</svg>", ""]
        )


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
