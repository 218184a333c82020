"""Static files: kept by browsers, and nothing else on the disk is one."""

from __future__ import annotations

import re

from millstream.console import files
from tests.console.conftest import Console


def test_static_files_are_kept_by_browsers(console: Console) -> None:
    status, headers, body = console.get("/static/console.css?v=1")
    assert status == 200
    assert headers["content-type"] == "text/css; charset=utf-8"
    assert "immutable" in headers["cache-control"]
    assert "light-dark" in body
    assert "set-cookie" not in headers
    paths = ("../app.py", "%2e%2e/app.py", "..%2fapp.py", "", ".", "vendor", "none.css")
    for path in paths:  # before any page is opened, too
        assert console.get(f"/static/{path}")[0] == 404


def test_every_file_has_a_type() -> None:
    assert {"console.css", "console.js", "icon.svg"} <= files.known().keys()
    for name, path in files.known().items():
        assert path.suffix in files.TYPES or path.name == "LICENSE", name


def test_version_changes_only_with_the_files() -> None:
    assert files.version() == files.version()
    assert re.fullmatch("[0-9a-f]{12}", files.version())
