"""The console as an ASGI application: its pages, what surrounds them, and what they share."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from millstream.console.actions import Outcomes
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
    """The application for one cluster; its sessions connect when a page needs them."""
    pages = import_pages()
    routes: list[BaseRoute] = [
        Mount("/static", CachedFiles(directory=STATIC), name="static"),
    ]
    for module in pages.values():
        routes += module.ROUTES
    app = Starlette(
        routes=routes,
        middleware=[
            Middleware(Guards, allowed_hosts=settings.allowed_hosts),
            Middleware(EscapedPaths),
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
    app.state.renderer = Renderer()
    app.state.navigation = [entry for entry in NAVIGATION if entry.module in pages]
    return app


def import_pages() -> dict[str, Any]:
    """The modules of the pages, by name."""
    names = [*(entry.module for entry in NAVIGATION), *OTHERS]
    return {
        name: import_module(f"millstream.console.pages.{name}")
        for name in names
        if find_spec(f"millstream.console.pages.{name}") is not None
    }


async def _failed(request: Request, error: Exception) -> Response:
    return log_failure(request, error)


class CachedFiles(StaticFiles):
    """Files whose address changes with their content, so browsers need not ask for them again."""

    def file_response(self, *arguments: Any, **more: Any) -> Response:
        response = super().file_response(*arguments, **more)
        response.headers["Cache-Control"] = f"public, max-age={STATIC_SECONDS}, immutable"
        return response
