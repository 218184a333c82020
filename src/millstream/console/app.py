"""The console as an ASGI application: its pages, what surrounds them, and what they share."""

from __future__ import annotations

import hmac
import logging
import secrets
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.console.actions import Outcomes
from millstream.console.answers import explain, failure
from millstream.console.guards import Guards
from millstream.console.live import Streams
from millstream.console.navigation import NAVIGATION, OTHERS
from millstream.console.paths import EscapedPaths
from millstream.console.rendering import STATIC, Renderer
from millstream.console.sessions import Sessions
from millstream.console.settings import ConsoleSettings

COOKIE = "millstream-console"
SCRIPT_HEADER = "x-millstream-console"
STATIC_SECONDS = 365 * 86_400

_log = logging.getLogger(__name__)


def create_app(settings: ConsoleSettings) -> Starlette:
    """The application for one cluster; its sessions connect when a page needs them."""
    pages = [it for it in (*(entry.module for entry in NAVIGATION), *OTHERS) if _exists(it)]
    routes: list[BaseRoute] = [
        Mount("/static", CachedFiles(directory=STATIC), name="static"),
    ]
    for name in pages:
        routes += import_module(f"millstream.console.pages.{name}").ROUTES
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Guards, allowed_hosts=settings.allowed_hosts),
            Middleware(EscapedPaths),
            Middleware(WithSession),
        ],
        exception_handlers={HTTPException: _failed, Exception: _failed},
    )
    app.router.redirect_slashes = False
    app.state.settings = settings
    app.state.sessions = Sessions(settings)
    app.state.streams = Streams()
    app.state.outcomes = Outcomes()
    app.state.renderer = Renderer()
    app.state.navigation = [entry for entry in NAVIGATION if entry.module in pages]
    app.state.secret = secrets.token_bytes(32)
    return app


def _exists(name: str) -> bool:
    return find_spec(f"millstream.console.pages.{name}") is not None


async def _failed(request: Request, error: Exception) -> Response:
    if explain(error).status == 500:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return failure(request, error)


class CachedFiles(StaticFiles):
    """Files whose address changes with their content, so browsers need not ask for them again."""

    def file_response(self, *arguments: Any, **more: Any) -> Response:
        response = super().file_response(*arguments, **more)
        response.headers["Cache-Control"] = f"public, max-age={STATIC_SECONDS}, immutable"
        return response


class WithSession:
    """Finds the session of a request; gives every browser a cookie, and forms their token."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/static/"):
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        known = request.cookies.get(COOKIE, "")
        cookie = known or secrets.token_urlsafe(24)
        shared = scope["app"].state
        request.state.is_script = is_script(request.headers)
        request.state.csrf = hmac.digest(shared.secret, cookie.encode(), "sha256").hex()
        request.state.flash = shared.outcomes.find(request.query_params)
        request.state.session = shared.sessions.find(request)

        async def with_cookie(message: Message) -> None:
            if message["type"] == "http.response.start" and not known:
                value = f"{COOKIE}={cookie}; Path=/; HttpOnly; SameSite=Strict"
                message["headers"] = [*message["headers"], (b"set-cookie", value.encode("latin-1"))]
            await send(message)

        await self._app(scope, receive, with_cookie)


def is_script(headers: Headers) -> bool:
    """Whether no browser's page can have sent this without asking: only scripts send this header,
    and a browser would ask the console first, which never allows it."""
    return SCRIPT_HEADER in headers and "origin" not in headers
