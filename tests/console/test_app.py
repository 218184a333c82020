"""The application: its routes."""

from __future__ import annotations

from starlette.routing import Route

from millstream.console.app import App, load_pages
from millstream.console.entrance import LOG_IN
from millstream.console.navigation import modules_of
from millstream.console.settings import ConsoleSettings
from tests.console.conftest import Console


def test_actions_are_made_by_post_only() -> None:
    """`actions.post` checks tokens; a route of its own for POST would not."""
    app = App(ConsoleSettings("127.0.0.1:1"))
    load_pages(app, modules_of("anything"))
    for route in app.routes:
        assert isinstance(route, Route)
        if route.path == LOG_IN:  # there is no session yet
            continue
        if route.methods and "POST" in route.methods:
            assert route.endpoint.__qualname__ == "post.<locals>.checked"
            assert route.methods == {"POST"}


def test_pages_are_imported_when_they_are_opened(console: Console) -> None:
    app = console.server._app
    assert console.get("/static/console.css")[0] == 200
    assert not app.loaded
    assert console.get("/quotas")[0] == 200
    assert app.loaded == {"quotas"}
    assert console.get("/topics")[0] == 200
    assert app.loaded == {"quotas", *modules_of("topics")}
    assert console.get("/nothing")[0] == 404
    assert app.loaded > {"overview", "log_in", "pipelines"}
    count = len(app.routes)
    assert console.get("/overview")[0] == 404
    assert len(app.routes) == count
