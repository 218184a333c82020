"""The README as a package index shows it, where links to files of the repository lead nowhere.

The address of the published site is the `Documentation` of `[project.urls]` in pyproject.toml: one
line, which an index shows, too. With it, links and pictures lead to pages of the site. As long as
there is no such address, links become plain text, and pictures are left out.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path

from tools.release import ReleaseError
from tools.site.pages import site_path

README = "README.md"
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(
    r"<picture>.*?<img alt=\"([^\"]*)\" src=\"([^\"]+)\">\s*</picture>", re.DOTALL
)
_IMAGE = re.compile(r"!\[([^\]]*)\]\((?!https?:)([^)\s]+)\)")
_LINK = re.compile(
    r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])+)\]\((?!https?:|mailto:)([^)\s#]*)(#[^)\s]*)?\)"
)


def describe(readme: str, site: str | None) -> str:
    """The description of the package."""
    parts = []
    end = 0
    for fence in _FENCE.finditer(readme):
        parts += [_prose(readme[end : fence.start()], site), fence[0]]
        end = fence.end()
    return "".join([*parts, _prose(readme[end:], site)])


def site_in(project: str) -> str | None:
    """The address of the site in the text of pyproject.toml. Raises `ReleaseError`."""
    given = tomllib.loads(project)["project"].get("urls", {}).get("Documentation")
    if given is not None and not re.fullmatch(r"https://[^\s?#]+", given):
        raise ReleaseError(f"pyproject.toml: Documentation {given!r} is not an https address")
    return None if given is None else str(given)


def write_description(tree: Path) -> None:
    """Put the description in the place of the README of a tree that is about to be built."""
    site = site_in((tree / "pyproject.toml").read_text(encoding="utf-8"))
    path = tree / README
    path.write_text(describe(path.read_text(encoding="utf-8"), site), encoding="utf-8")


def relative_links(description: str) -> list[str]:
    """The links of a description that would lead nowhere."""
    prose = _FENCE.sub("", description)
    found = [match[2] for match in _LINK.finditer(prose) if match[2]]
    found += [match[2] for match in _IMAGE.finditer(prose)]
    return found + re.findall(r"(?:src|srcset|href)=\"(?!https?:)([^\"]+)\"", prose)


def _prose(text: str, site: str | None) -> str:
    text = _PICTURE.sub(r"![\1](\2)", text)
    text = _IMAGE.sub(lambda it: f"![{it[1]}]({_address(it[2], site)})" if site else "", text)

    def relink(match: re.Match[str]) -> str:
        if not match[2]:
            return match[0]  # within the page
        if site is None:
            return match[1]
        return f"[{match[1]}]({_address(match[2], site)}{match[3] or ''})"

    return _LINK.sub(relink, text)


def _address(file: str, site: str | None) -> str:
    path = site_path(posixpath.normpath(file))
    page = f"{path.removesuffix('.md')}.html" if path.endswith(".md") else path
    if posixpath.basename(path) == README:
        page = posixpath.join(posixpath.dirname(path), "index.html")
    return f"{(site or '').rstrip('/')}/{page}"
