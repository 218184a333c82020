"""HTTP to those who issue tokens: with TLS unless it is this machine, and without redirects."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import ssl
    from urllib.request import OpenerDirector

_LOCAL = ("localhost", "127.0.0.1", "::1")


def is_safe_url(url: str) -> bool:
    """Over plain HTTP anyone on the way could read secrets and replace keys. Raises `ValueError`
    for what is no URL."""
    parts = urlsplit(url)
    if parts.scheme == "http":
        return parts.hostname in _LOCAL
    return parts.scheme == "https" and bool(parts.hostname)


def opener(context: ssl.SSLContext | None = None) -> OpenerDirector:
    """Answers a redirect with `HTTPError`: it could lead to plain HTTP, or take a secret along."""
    from urllib.request import (  # 30 ms, which only few need
        HTTPRedirectHandler,
        HTTPSHandler,
        build_opener,
    )

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    return build_opener(NoRedirects, HTTPSHandler(context=context))
