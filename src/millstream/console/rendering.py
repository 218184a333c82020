"""Jinja's templates of the console, with autoescape, the filters of `formats`, and the macros of
`macros.html` as `ui`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from millstream.console.formats import FILTERS
from millstream.console.paths import link, segment

HERE = Path(__file__).parent
TEMPLATES = HERE / "templates"
STATIC = HERE / "static"


class Renderer:
    """Templates by name, and blocks of them."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        version = static_version()
        self._environment.filters |= {**FILTERS, "segment": segment}
        self._environment.globals |= {
            "link": link,
            "with_query": with_query,
            "chart_path": chart_path,
            "static": lambda name: f"/static/{name}?v={version}",
        }
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


def static_version() -> str:
    """Changes with the files, so that browsers may keep them."""
    digest = hashlib.sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:12]
