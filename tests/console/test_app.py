"""The application: routes, static files, cookies, names in paths."""

from __future__ import annotations

from starlette.routing import Mount, Route

from millstream.console.app import create_app, load_pages
from millstream.console.entrance import LOG_IN
from millstream.console.settings import ConsoleSettings
from tests.console.conftest import Console


def test_actions_are_made_by_post_only() -> None:
    """`actions.post` checks tokens; a route of its own for POST would not."""
    app = create_app(ConsoleSettings("127.0.0.1:1"))
    load_pages(app)
    for route in app.routes:
        if isinstance(route, Mount):
            continue
        assert isinstance(route, Route)
        if route.path == LOG_IN:  # there is no session yet
            continue
        if route.methods and "POST" in route.methods:
            assert route.endpoint.__qualname__ == "post.<locals>.checked"
            assert route.methods == {"POST"}


def test_static_files_are_kept_by_browsers(console: Console) -> None:
    status, headers, body = console.get("/static/console.css?v=1")
    assert status == 200
    assert "immutable" in headers["cache-control"]
    assert "light-dark" in body
    assert "set-cookie" not in headers
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py"):
        assert console.get(path)[0] == 404
