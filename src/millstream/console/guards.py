"""What a console refuses, before any page sees the request.

- Another site's name in `Host`: DNS rebinding would make a browser take that site for the console.
  Addresses and localhost are safe, since they name no other site; other names must be allowed.
- A request that changes something and comes from another site (`Origin`, `Sec-Fetch-Site`).
- Bodies that are too large.

Every answer gets a Content-Security-Policy that allows the console's own files only, so that a
name or value that became HTML by mistake would run no script.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

BODY_BYTES_MAX = 8 * 1024 * 1024
TOO_LARGE = f"a request has at most {BODY_BYTES_MAX} bytes"
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


class Guards:
    """See the module. A pure ASGI middleware, so that streams pass unbuffered."""

    def __init__(self, app: ASGIApp, allowed_hosts: Sequence[str]) -> None:
        self._app = app
        self._allowed = tuple(host.lower() for host in allowed_hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        refused = self._refusal(scope["method"], headers)
        if refused is not None:
            status, message = refused
            await PlainTextResponse(message + "\n", status)(scope, receive, _with_headers(send))
            return
        await self._app(scope, _limited(receive), _with_headers(send))

    def _refusal(self, method: str, headers: Headers) -> tuple[int, str] | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not is_allowed_host(hosts[0], self._allowed):
            shown = hosts[0][:100] if hosts else ""
            return 421, (
                f"this console does not answer to the name {shown!r}; open it by its address, or "
                "start it with --allow-host NAME"
            )
        if method not in METHODS:
            return 405, f"method not allowed: {method[:20]}"
        if method not in READING and is_foreign(headers):
            return 403, "this request comes from a page of another site"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > BODY_BYTES_MAX:
            return 413, TOO_LARGE
        return None


def _limited(receive: Receive) -> Receive:
    received = 0

    async def limited() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > BODY_BYTES_MAX:
            raise HTTPException(413, TOO_LARGE)
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
