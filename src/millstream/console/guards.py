"""What a console refuses, before any page sees the request.

- Another site's name in `Host`: DNS rebinding would make a browser take that site for the console.
  Addresses and localhost are safe, since they name no other site; other names must be allowed.
- A request that comes from a page of another site (`Origin`, `Sec-Fetch-Site`), though a browser
  would not let that page read the answer: it may change something, and reading takes the brokers'
  time, too. Only links to pages are followed; not to streams, files and JSON.
- Bodies that are too large.

Every answer gets a Content-Security-Policy that allows the console's own files only, so that a
name or value that became HTML by mistake would run no script.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 8 * 1024 * 1024
LOG_IN_BYTES_MAX = 64 * 1024
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": the Origin of forms would be "null", as of another site.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
READING = ("GET", "HEAD")
METHODS = (*READING, "POST")
NO_PAGES = ("/live/records", "/search/hits", "/export/file")  # streams and files
NO_PAGE_PARAMETERS = frozenset(("live", "format"))
_HOST = re.compile(r"\A(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?\Z")


def host_name(host: str) -> str | None:
    """The name or address in a `Host` header, in lower case; None if it is malformed."""
    found = _HOST.match(host)
    return None if found is None else found[1].strip("[]").rstrip(".").lower()


def is_allowed_host(host: str, allowed: Sequence[str]) -> bool:
    name = host_name(host)
    if name is None:
        return False
    if name == "localhost" or name in allowed:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_foreign(headers: Headers) -> bool:
    """Whether a browser sent this because of a page of another site."""
    site = headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    scheme, _, host = origin.partition("://")
    return scheme not in ("http", "https") or host.lower() != headers.get("host", "").lower()


def is_link(path: str, query: bytes, headers: Headers) -> bool:
    """Whether a browser opens a page in a tab, as it does for a link of another site."""
    if headers.get("sec-fetch-mode") != "navigate" or headers.get("sec-fetch-dest") != "document":
        return False
    if "sec-purpose" in headers:  # fetched in advance: nobody has followed the link yet
        return False
    parameters = {name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True)}
    return not path.endswith(NO_PAGES) and not parameters & NO_PAGE_PARAMETERS


class Guards:
    """See the module. A pure ASGI middleware, so that streams pass unbuffered."""

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._allowed = tuple(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        refused = self._refusal(scope, headers)
        if refused is not None:
            status, message = refused
            await PlainTextResponse(message + "\n", status)(scope, receive, _with_headers(send))
            return
        limited = _limited(receive, body_bytes_max(scope["path"]))
        await self._app(scope, limited, _with_headers(send))

    def _refusal(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        method: str = scope["method"]
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_allowed_host(hosts[0], self._allowed):
            shown = hosts[0][:100] if hosts else ""
            return 421, (
                f"this console does not answer to the name {shown!r}; open it by its address, or "
                "start it with --allow-host NAME"
            )
        if method not in METHODS:
            return 405, f"method not allowed: {method[:20]}"
        if is_foreign(headers) and not (
            method in READING and is_link(scope["path"], scope["query_string"], headers)
        ):
            return 403, "this request comes from a page of another site"
        length = headers.get("content-length", "0")
        most = body_bytes_max(scope["path"])
        if not length.isascii() or not length.isdigit() or len(length) > 18 or int(length) > most:
            return 413, too_large(most)
        return None


def body_bytes_max(path: str) -> int:
    """Less where nobody has logged in yet."""
    return LOG_IN_BYTES_MAX if path == "/log-in" else BODY_BYTES_MAX


def too_large(most: int) -> str:
    return f"a request has at most {most} bytes here"


def _limited(receive: Receive, most: int) -> Receive:
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > most:
            raise HTTPException(413, too_large(most))
        return message

    return limited


def _with_headers(send: Send) -> Send:
    async def with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("Cache-Control", "no-store")
        await send(message)

    return with_headers
