"""Pages of the site, made from Markdown that is written to be read in the repository.

    outside_files   files outside docs/ that pages link to: they become pages, too
    for_site        a page's Markdown, as MkDocs needs it
    navigation      the list of pages in docs/index.md, as MkDocs' `nav`
    source_page     a page that shows a source file

Paths are POSIX strings relative to the repository ("docs/guides/queues.md"), or to the site's own
source directory ("guides/queues.md", "examples/groups.py.md").
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Any

ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "examples/README.md")
LANGUAGES = {".py": "python", ".sql": "sql", ".java": "java", ".toml": "toml", ".go": "go"}
LIST_INDENT = 4

_FENCE = re.compile(r"^( *)(```+)([^\n]*)\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_TITLED_FENCE = re.compile(r"^( *```+)(\w+) ([\w./-]+)$", re.MULTILINE)
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*'
    r'<img alt="([^"]*)" src="([^"]+)">\s*</picture>'
)
_NESTED_ENTRY = re.compile(r"^ {2,3}(?=(?:[-*]|\d+\.) )", re.MULTILINE)
_COMMENT = re.compile(r"^<!--.*-->\n", re.MULTILINE)
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\)", re.MULTILINE)


class SiteError(Exception):
    """A page cannot be part of the site."""


Read = Callable[[str], str]  # the text of a file of the repository


def site_path(file: str) -> str:
    """The page, or the picture, of a file of the repository."""
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    if file == "README.md":
        return "index.md"
    if file.endswith(".md"):
        return file
    if posixpath.splitext(file)[1] in LANGUAGES:
        return f"{file}.md"
    raise SiteError(f"{file}: files of this kind cannot be pages of the site")


def links(text: str, file: str) -> Iterator[str]:
    """The files that the Markdown of a file links to, fenced blocks left out."""
    for match in _LINK.finditer(_FENCE.sub("", text)):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(file), match[1]))


def outside_files(pages: list[str], read: Read) -> list[str]:
    """The files outside docs/ that these files of the repository link to, directly or not; also
    those of the README, whose links lead to the site where a package index shows it."""
    found = set(ALWAYS)
    waiting = [*pages, *ALWAYS, "README.md"]
    while waiting:
        file = waiting.pop()
        for target in links(read(file), file):
            if target.startswith("docs/") or target in found or target == "README.md":
                continue
            found.add(target)
            if target.endswith(".md"):
                waiting.append(target)
    return sorted(found)


def for_site(text: str, file: str) -> str:
    """The Markdown of a file as a page: links, pictures, and titles of fenced blocks."""
    here = posixpath.dirname(site_path(file))

    def relink(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), match[1]))
        return posixpath.relpath(site_path(target), here or ".") + (match[2] or "")

    parts = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += [_prose(text[end : fence.start()], relink), _block(fence)]
        end = fence.end()
    parts.append(_prose(text[end:], relink))
    return _TITLED_FENCE.sub(r'\1\2 title="\3"', "".join(parts))


def _prose(text: str, relink: Callable[[re.Match[str]], str]) -> str:
    text = _PICTURE.sub(r"![\2](\3#only-light)\n![\2](\1#only-dark)", _COMMENT.sub("\n", text))
    text = _NESTED_ENTRY.sub(" " * LIST_INDENT, text)
    return _LINK.sub(relink, text)


def _block(fence: re.Match[str]) -> str:
    """A fenced block. Python-Markdown wants those in lists indented by four, after a blank line."""
    if not 0 < len(fence[1]) < LIST_INDENT:
        return fence[0]
    missing = " " * (LIST_INDENT - len(fence[1]))
    return "\n" + "".join(f"{missing}{line}" for line in fence[0].splitlines(keepends=True))


def source_page(file: str, text: str) -> str:
    """A page with the text of a source file. The search leaves it out."""
    language = LANGUAGES[posixpath.splitext(file)[1]]
    title = f"title: {posixpath.basename(file)}"
    head = f"---\n{title}\nsearch:\n  exclude: true\nhide: [toc]\n---\n\n# `{file}`\n\n"
    return f'{head}````{language} linenums="1"\n{text.rstrip()}\n````\n'


def navigation(read: Read) -> list[Any]:
    """Each `## section` of docs/index.md with its entries. An entry that is the README.md of a
    directory has the pages that it links to in that directory below it, in its order."""
    parts = _SECTION.split(read("docs/index.md"))
    sections = zip(parts[1::2], parts[2::2], strict=True)
    nav: list[Any] = [{"Home": "index.md"}]
    for title, body in sections:
        entries = [_entry(*match, read) for match in _ENTRY.findall(body)]
        nav.append({title: entries})
    return nav


def _entry(title: str, target: str, read: Read) -> Any:
    file = posixpath.normpath(posixpath.join("docs", target))
    page = site_path(file)
    if not file.startswith("docs/") or not file.endswith("/README.md"):
        return {title: page}
    directory = posixpath.dirname(file)
    listed = dict.fromkeys(links(read(file), file))
    below = [site_path(it) for it in listed if posixpath.dirname(it) == directory]
    return {title: [page, *below]}
