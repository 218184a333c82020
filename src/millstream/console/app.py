"""The console as an ASGI application: its pages, what surrounds them, and what they share."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.util import find_spec

from starlette.datastructures import State
from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from millstream.console import files
from millstream.console.actions import Outcomes
from millstream.console.entrance import Entrance
from millstream.console.guards import Guards
from millstream.console.live import Streams
from millstream.console.navigation import NAVIGATION, modules_of
from millstream.console.paths import EscapedPaths
from millstream.console.sampler import Samplers
from millstream.console.sessions import Sessions
from millstream.console.settings import ConsoleSettings

PAGES = "millstream.console.pages"


class App:
    """The application for one cluster; its sessions connect when a page needs them, and pages are
    imported with the first request for them. `Entrance` answers all errors, so that Starlette's own
    application, which imports more, is not needed."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self.state = State()
        self.state.settings = settings
        self.state.sessions = Sessions(settings)
        self.state.streams = Streams()
        self.state.samplers = Samplers()
        self.state.outcomes = Outcomes()
        self.state.renderer = None
        self.loaded: set[str] = set()  # modules of pages
        self.router = Router(routes=files.ROUTES, redirect_slashes=False)
        inner = EscapedPaths(LatePages(Entrance(self.router)))
        self._app = Guards(inner, allowed_hosts=settings.allowed_hosts)

    @property
    def routes(self) -> list[BaseRoute]:
        return self.router.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        await self._app(scope, receive, send)


def load_pages(app: App, modules: Iterable[str]) -> None:
    """Import the pages that are not yet there, and add their routes. With the first of them,
    templates are compiled, meanwhile in another process."""
    from millstream.console.compiling import compiled_templates
    from millstream.console.rendering import Renderer

    compiled = compiled_templates()
    for name in modules:
        if name not in app.loaded:
            app.loaded.add(name)
            if _is_there(name):
                app.routes.extend(import_module(f"{PAGES}.{name}").ROUTES)
    if app.state.renderer is None:
        app.state.navigation = [entry for entry in NAVIGATION if _is_there(entry.module)]
        app.state.renderer = Renderer(compiled)


def _is_there(module: str) -> bool:
    return find_spec(f"{PAGES}.{module}") is not None


class LatePages:
    """Pages and their templates need memory: those save it that nobody opens."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        part = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
        if part != "static":
            load_pages(scope["app"], modules_of(part))
        await self._app(scope, receive, send)
