"""Jinja's templates of the console, with autoescape, the filters of `formats`, and the macros of
`macros.html` as `ui`. They are compiled in a child process (`compiling`)."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from jinja2 import BytecodeCache, Environment

from millstream.console import files
from millstream.console.compiling import bare_environment
from millstream.console.paths import link


def environment(compiled: BytecodeCache | None = None) -> Environment:
    """With what templates use; `compiled` may have some of them already."""
    made = bare_environment(compiled)
    version = files.version()
    made.globals |= {
        "link": link,
        "with_query": with_query,
        "chart_path": chart_path,
        "static": lambda name: f"/static/{name}?v={version}",
    }
    return made


class Renderer:
    """Templates by name, and blocks of them."""

    def __init__(self, compiled: BytecodeCache | None = None) -> None:
        self._environment = environment(compiled)
        self._environment.globals["ui"] = self._environment.get_template("macros.html").module

    def whole(self, template: str, model: Any, context: dict[str, Any]) -> str:
        return self._environment.get_template(template).render(model=model, **context)

    def block(self, template: str, block: str, model: Any, context: dict[str, Any]) -> str:
        """One block of a template, as `whole` has it."""
        found = self._environment.get_template(template)
        variables = found.new_context({"model": model, "live_url": None, **context})
        return "".join(found.blocks[block](variables))


def with_query(query: Any, **changes: Any) -> str:
    """The query of a link to the same page with some parameters changed; None takes one out."""
    parameters = {key: query[key] for key in query if key not in ("live", "done")}
    parameters |= {key: str(value) for key, value in changes.items()}
    kept = {key: it for key, it in parameters.items() if changes.get(key, it) is not None}
    return "?" + urlencode(kept)


def chart_path(chart: str, query: Any, model: Any) -> str:
    """Where the data of a chart are, of the topic or group that the page shows."""
    of = {"topic": model.name} if hasattr(model, "name") else {}
    if hasattr(model, "group"):
        of = {"group": model.group}
    return "/history?" + urlencode({"chart": chart, **of, "range": query.get("range", "1h")})
