"""Names in paths of pages: any topic, group or user has a page, whatever its name.

A name is one segment of a path. Slashes in it are escaped and stay escaped while the route is
looked up; `.` and `..`, which browsers would resolve, and the empty name get a `~` in front, as do
names that begin with one.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from starlette.convertors import Convertor, register_url_convertor
from starlette.types import ASGIApp, Receive, Scope, Send

MARK = "~"


def segment(name: str) -> str:
    """The name as one segment of a path."""
    if name in ("", ".", "..") or name.startswith(MARK):
        name = MARK + name
    return quote(name, safe="")


def name_of(escaped: str) -> str:
    """The name of a segment; the inverse of `segment`."""
    return unquote(escaped, errors="replace").removeprefix(MARK)


def link(*parts: str) -> str:
    """The path of a page: `link("topics", name, "messages")`. Only names need escaping, and the
    other parts look the same with it."""
    return "/" + "/".join(segment(part) for part in parts)


class NameConvertor(Convertor[str]):
    """`{name:name}` in a route."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return name_of(value)

    def to_string(self, value: str) -> str:
        return segment(value)


register_url_convertor("name", NameConvertor())


class EscapedPaths:
    """Looks routes up by the path as it was sent, so that an escaped slash separates nothing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope.get("raw_path"):
            raw: bytes = scope["raw_path"]
            scope = {**scope, "path": raw.partition(b"?")[0].decode("ascii", "replace")}
        await self._app(scope, receive, send)
