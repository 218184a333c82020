"""Answers of pages: HTML, a stream of its live parts, or JSON of the same model.

    async def show(request: Request) -> Response:
        return await page(request, "topics.html", load, live={"rows": 2.0})

`load` makes the model, a dataclass, with a `Cluster`. The template sees it as `model`. Its block
`rows` is rendered again every two seconds into the element with the id `live-rows`, if it changed.
`?format=json`, or an `Accept` without HTML, gets the model as JSON. Errors are answered in the same
ways, by `failure`.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from millstream.admin.errors import NotFound
from millstream.client.cluster import Cluster
from millstream.client.rights import RESOURCES
from millstream.console import live as streams
from millstream.console.sessions import in_cluster
from millstream.errors import ApiError, ConfigError, ErrorCode, MillstreamError
from millstream.models import dataclass

if TYPE_CHECKING:
    from millstream.console.rendering import Renderer

Load = Callable[[Cluster], Any]

_MISSING = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
}
_NOT_LOGGED_IN = {ErrorCode.SASL_AUTHENTICATION_FAILED}


@dataclass(frozen=True)
class Failure:
    """The model of an error page."""

    status: int
    title: str
    message: str
    error: str = ""  # the protocol's name of the error


async def page(
    request: Request,
    template: str,
    load: Load,
    *,
    live: Mapping[str, float] | None = None,
    events: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Response:
    """See the module. `live` has the blocks to render again, and after how many seconds. With
    them come `events` of the model for the page's scripts, by name, if they changed."""
    if streams.PARAMETER in request.query_params and live:
        renderer, context = _renderer(request), _context(request)

        async def draw(blocks: Sequence[str]) -> dict[str, str | streams.Event]:
            model = await in_cluster(request, load)
            drawn: dict[str, str | streams.Event] = {
                it: renderer.block(template, it, model, context) for it in blocks
            }
            for name, data in (events(model) if events else {}).items():
                drawn[f"event {name}"] = streams.Event(name, plain(data))
            return drawn

        return streams.follow(request, live, draw, problem=_problem_of(request))
    return render(request, template, await in_cluster(request, load), live=bool(live))


def render(
    request: Request, template: str, model: Any, *, status: int = 200, live: bool = False
) -> Response:
    """A model that is there already, as HTML or JSON."""
    if wants_json(request):
        return json_answer(model, status)
    context = {**_context(request), "live_url": _live_url(request) if live else None}
    return HTMLResponse(_renderer(request).whole(template, model, context), status)


def json_answer(model: Any, status: int = 200) -> Response:
    text = json.dumps(plain(model), ensure_ascii=False, separators=(",", ":"))
    # A lone surrogate, from a name that is no UTF-8, must not turn an answer into an error.
    body = text.encode("utf-8", "replace")
    return Response(body, status, media_type="application/json")


def failure(request: Request, error: Exception) -> Response:
    """The answer to a request that failed."""
    model = explain(error)
    if request.app.state.renderer is None:  # a file, before the first page
        return PlainTextResponse(model.message + "\n", model.status)
    if request.headers.get("hx-request") and not wants_json(request):
        # An action's form shows it beside what was typed.
        renderer = _renderer(request)
        return HTMLResponse(renderer.whole("failed_action.html", model, {}), model.status)
    return render(request, "error.html", model, status=model.status)


def explain(error: Exception) -> Failure:
    """What a user should see of an exception."""
    if isinstance(error, HTTPException):
        title = "Not found" if error.status_code == 404 else "Refused"
        return Failure(error.status_code, title, error.detail)
    if isinstance(error, ApiError):
        return _of_broker(error)
    if isinstance(error, OSError):
        return Failure(503, "The cluster cannot be reached", str(error), type(error).__name__)
    if isinstance(error, ConfigError):
        return Failure(502, "The connection is not set up correctly", str(error))
    if isinstance(error, NotFound):
        return Failure(404, "Not found", str(error))
    if isinstance(error, MillstreamError):
        return Failure(400, "That is not possible", str(error))
    return Failure(500, "The console has a fault", "See its log for details.")


def _of_broker(error: ApiError) -> Failure:
    name, message = error.code.name, str(error)
    if error.code in RESOURCES:
        return Failure(403, "You lack the right to see or do this", message, name)
    if error.code in _MISSING:
        return Failure(404, "Not found", message, name)
    if error.code in _NOT_LOGGED_IN:
        return Failure(401, "Not logged in", message, name)
    if error.code is ErrorCode.UNSUPPORTED_VERSION:
        return Failure(501, "This cluster does not offer that", message, name)
    if error.code.retriable:
        return Failure(503, "The cluster is not ready", message, name)
    return Failure(400, "The cluster refused", message, name)


def wants_json(request: Request) -> bool:
    wanted = request.query_params.get("format")
    if wanted is not None:
        return wanted == "json"
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


def plain(value: Any) -> Any:
    """What JSON can hold: dataclasses are objects, bytes are base64."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {it.name: plain(getattr(value, it.name)) for it in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.name.lower()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {name: plain(it) for name, it in zip(value._fields, value, strict=True)}
    if isinstance(value, Mapping):
        return {str(key): plain(it) for key, it in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(it) for it in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return str(value) if isinstance(value, UUID) else value


def _problem_of(request: Request) -> Callable[[Exception], str]:
    """What a page shows while its live parts cannot be loaded."""
    renderer = _renderer(request)
    return lambda error: renderer.whole("live_problem.html", explain(error), {})


def _renderer(request: Request) -> Renderer:
    renderer: Renderer = request.app.state.renderer
    return renderer


def _context(request: Request) -> dict[str, Any]:
    """What every template sees besides its model."""
    session = getattr(request.state, "session", None)
    navigation = request.app.state.navigation
    return {
        "path": request.scope["path"],
        "query": request.query_params,
        "user": session.user if session else None,
        "csrf": getattr(request.state, "csrf", ""),
        "flash": getattr(request.state, "flash", None),
        "navigation": navigation,
        "sections": [(name, list(it)) for name, it in groupby(navigation, attrgetter("section"))],
        "bootstrap_servers": request.app.state.settings.bootstrap_servers,
    }


def _live_url(request: Request) -> str:
    url = request.url.include_query_params(**{streams.PARAMETER: "1"})
    return f"{request.scope['path']}?{url.query}"
