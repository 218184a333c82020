"""Templates: escaping, filters, versions of files."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from millstream.console.compiling import TEMPLATES
from millstream.console.lists import Listed
from millstream.console.rendering import Renderer, chart_path, with_query


def test_macros_escape_what_they_show() -> None:
    renderer = Renderer()
    evil = "<script>alert(1)</script>\"'"
    shown = renderer._environment.from_string(
        "{{ ui.badge(x, x, x) }}{{ ui.stat(x, x, x) }}{{ ui.problem(x, x) }}{{ ui.json(x) }}"
        "{{ ui.command_line(x) }}{{ ui.field(x, x, x) }}{{ ui.heading(x, x, x) }}"
        "{{ ui.empty(x, x) }}{{ ui.search(listed, {x: x}, x, x) }}"
        "{% call ui.confirm(x, x, x, x, x) %}{{ x }}{% endcall %}"
    ).render(x=evil, listed=Listed([], 0, 0, 1, 1, 50, evil, evil))
    assert "<script>alert" not in shown
    assert "&lt;script&gt;" in shown


def test_queries_keep_what_is_not_changed() -> None:
    query = {"q": "a b", "page": "2", "live": "1", "done": "x"}
    assert with_query(query, page=3) == "?q=a+b&page=3"
    assert with_query(query, page=None, sort="-lag") == "?q=a+b&sort=-lag"


def test_charts_are_those_of_what_the_page_shows() -> None:
    assert chart_path("size", {}, SimpleNamespace()) == "/history?chart=size&range=1h"
    named = SimpleNamespace(name="a&b/c")
    assert chart_path("size", {"range": "6h"}, named) == (
        "/history?chart=size&topic=a%26b%2Fc&range=6h"
    )
    assert "group=g" in chart_path("lag", {}, SimpleNamespace(group="g"))


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.html")), ids=lambda it: it.name)
def test_templates_need_no_exception_from_the_policy(path: object) -> None:
    """What a page shows cannot be trusted: no template may mark it as safe."""
    text = path.read_text(encoding="utf-8")  # type: ignore[attr-defined]
    for forbidden in (r"\|\s*safe", r"\bstyle=", r"<script>", r"\bon[a-z]+=\"", r"hx-on", r"\bjs:"):
        assert not re.search(forbidden, text), forbidden
