"""The console as an ASGI application: its pages, what surrounds them, and what they share."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.console.actions import Outcomes
from millstream.console.answers import explain
from millstream.console.entrance import Entrance, log_failure
from millstream.console.guards import Guards
from millstream.console.live import Streams
from millstream.console.navigation import NAVIGATION, OTHERS
from millstream.console.paths import EscapedPaths
from millstream.console.rendering import STATIC, Renderer
from millstream.console.sampler import Samplers
from millstream.console.sessions import Sessions
from millstream.console.settings import ConsoleSettings
from millstream.errors import MillstreamError

STATIC_SECONDS = 365 * 86_400


def create_app(settings: ConsoleSettings) -> Starlette:
    """The application for one cluster; its sessions connect when a page needs them, and pages are
    imported with the first request for one."""
    app = Starlette(
        routes=[Mount("/static", CachedFiles(directory=STATIC), name="static")],
        middleware=[
            Middleware(Guards, allowed_hosts=settings.allowed_hosts),
            Middleware(EscapedPaths),
            Middleware(LatePages),
            Middleware(Entrance),
        ],
        exception_handlers=dict.fromkeys((HTTPException, MillstreamError, OSError), _failed),
    )
    app.router.redirect_slashes = False
    app.state.settings = settings
    app.state.sessions = Sessions(settings)
    app.state.streams = Streams()
    app.state.samplers = Samplers()
    app.state.outcomes = Outcomes()
    app.state.renderer = None
    return app


def load_pages(app: Starlette) -> None:
    """Import the pages, and add their routes."""
    names = [*(entry.module for entry in NAVIGATION), *OTHERS]
    pages = {
        name: import_module(f"millstream.console.pages.{name}")
        for name in names
        if find_spec(f"millstream.console.pages.{name}") is not None
    }
    for module in pages.values():
        app.router.routes.extend(module.ROUTES)
    app.state.navigation = [entry for entry in NAVIGATION if entry.module in pages]
    app.state.renderer = Renderer()


class LatePages:
    """Pages and their templates need memory, which a console that nobody opens saves."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["app"].state.renderer is None and not scope["path"].startswith("/static/"):
            load_pages(scope["app"])
        await self._app(scope, receive, send)


async def _failed(request: Request, error: Exception) -> Response:
    if request.app.state.renderer is None:  # a file, before the first page
        return PlainTextResponse(explain(error).message + "\n", explain(error).status)
    return log_failure(request, error)


class CachedFiles(StaticFiles):
    """Files whose address changes with their content, so browsers need not ask for them again."""

    def file_response(self, *arguments: Any, **more: Any) -> Response:
        response = super().file_response(*arguments, **more)
        response.headers["Cache-Control"] = f"public, max-age={STATIC_SECONDS}, immutable"
        return response
