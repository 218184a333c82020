"""Actions: POST requests of forms, each with the command line that does the same.

    async def delete(request: Request, form: Form) -> Response:
        name = request.path_params["name"]
        check_typed(form, name)
        return await act(
            request, delete_topic, name,
            done=f"Topic {name} is deleted.",
            command=command(request, "topic", "delete", name, "--yes"),
            back=link("topics"),
        )

    ROUTES = [post("/topics/{name:name}/delete", delete)]

Every form has the session's token (`ui.form` adds it), and `post` checks it before the handler
runs. A form that htmx sent shows an error in place and keeps what was typed.
"""

from __future__ import annotations

import hmac
import json
import secrets
import shlex
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from millstream.console.answers import json_answer, wants_json
from millstream.console.sessions import in_cluster
from millstream.errors import MillstreamError
from millstream.models import dataclass

TOKEN_FIELD = "csrf"
TOKEN_HEADER = "x-csrf-token"
CONFIRMATION_FIELD = "confirmation"
DONE_PARAMETER = "done"
DONE_MAX = 200


class Refused(MillstreamError):
    """What a form asks for is not possible; the message is for its user."""


@dataclass(frozen=True)
class Done:
    """The result of an action, shown on the next page."""

    message: str
    command: str = ""


class Form:
    """The fields of a form, each with any number of values."""

    def __init__(self, pairs: Sequence[tuple[str, str]]) -> None:
        self._values: dict[str, list[str]] = {}
        for name, value in pairs:
            self._values.setdefault(name, []).append(value)

    def get(self, name: str, default: str = "") -> str:
        """The first value, without spaces around it; the default also if nothing was typed."""
        return (self._values.get(name, [""])[0].strip()) or default

    def text(self, name: str) -> str:
        """The first value as it was typed."""
        return self._values.get(name, [""])[0]

    def all(self, name: str) -> list[str]:
        return self._values.get(name, [])

    def need(self, name: str, what: str) -> str:
        """A value that must be there; `what` it is called in the form."""
        value = self.get(name)
        if not value:
            raise Refused(f"{what} is missing")
        return value

    def integer(self, name: str, what: str, default: int | None = None) -> int:
        text = self.get(name)
        if not text and default is not None:
            return default
        try:
            return int(text)
        except ValueError:
            raise Refused(f"{what} must be a whole number, not {text!r}") from None

    def topic_id(self) -> UUID | None:
        """The id of the topic that the page has shown, if the cluster has ids."""
        text = self.get("id")
        try:
            found = UUID(text) if text else None
        except ValueError:
            raise Refused(f"{text[:80]!r} is not the id of a topic") from None
        return found if found and found.int else None


Handler = Callable[[Request, Form], Awaitable[Response]]


def post(path: str, handler: Handler) -> Route:
    """The route of an action. All routes for POST are made here."""

    async def checked(request: Request) -> Response:
        form = await read_form(request)
        check_token(request, form)
        return await handler(request, form)

    return Route(path, checked, methods=["POST"])


async def read_form(request: Request) -> Form:
    """A form, or a JSON object; `guards` limits its size."""
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        if kind == "application/json":
            return Form(_json_pairs(json.loads(body or b"{}")))
        if kind in ("application/x-www-form-urlencoded", ""):
            pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=10_000)
            return Form(pairs)
    except (ValueError, UnicodeDecodeError, RecursionError) as error:
        raise HTTPException(400, f"the body is not a form: {error}") from None
    raise HTTPException(415, f"unsupported content type: {kind}; send a form or JSON")


def _json_pairs(value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, dict):
        raise ValueError("JSON must be an object")
    pairs = [
        (name, one if isinstance(one, str) else json.dumps(one))
        for name, it in value.items()
        for one in (it if isinstance(it, list) else [it])
    ]
    for name, one in pairs:
        (name + one).encode()  # half of a surrogate pair, which JSON may have, is no text
    return pairs


def check_token(request: Request, form: Form) -> None:
    """Only pages of this console know the token, and scripts without a browser need none."""
    if request.state.is_script:
        return
    given = request.headers.get(TOKEN_HEADER) or form.text(TOKEN_FIELD)
    if not hmac.compare_digest(given.encode(), request.state.csrf.encode()):
        raise HTTPException(403, "this form is out of date; reload the page and send it again")


def check_typed(form: Form, name: str) -> None:
    """What cannot be undone is confirmed by typing the name of what it happens to."""
    if form.text(CONFIRMATION_FIELD) != name:
        raise Refused(f"type {name!r} to confirm")


def command(request: Request, *arguments: str) -> str:
    """The command line that does the same, for the cluster of this console."""
    servers = request.app.state.settings.bootstrap_servers
    return command_of(*arguments, "--bootstrap-server", servers)


def command_of(*arguments: str) -> str:
    """A command line that needs no cluster. Names that look like options stand behind `--`."""
    others, names = ["millstream"], list[str]()
    for it in arguments:
        is_value = others[-1].startswith("--")  # of the option before it
        looks_like_option = it.startswith("-") and not it.startswith("--")
        (names if looks_like_option and not is_value else others).append(it)
    return shlex.join([*others, *(["--", *names] if names else [])])


async def act(
    request: Request,
    perform: Callable[..., Any],
    *arguments: Any,
    done: str | Callable[[Any], str],
    command: str,
    back: str,
) -> Response:
    """Perform it with the user's `Cluster`, then go `back` to a page that shows it is `done`.

    `done` may be a function of what `perform` returns. Scripts get both as JSON."""
    result = await in_cluster(request, perform, *arguments)
    return finish(request, Done(done if isinstance(done, str) else done(result), command), back)


def finish(request: Request, done: Done, back: str) -> Response:
    """The answer to an action that was performed."""
    if wants_json(request):
        return json_answer(done)
    outcomes: Outcomes = request.app.state.outcomes
    separator = "&" if "?" in back else "?"
    target = f"{back}{separator}{DONE_PARAMETER}={outcomes.keep(done)}"
    if request.headers.get("hx-request"):
        return Response(status_code=200, headers={"HX-Redirect": target})
    return RedirectResponse(target, 303)


class Outcomes:
    """Results of recent actions, by the id in the URL of the page that shows them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Done] = OrderedDict()

    def keep(self, done: Done) -> str:
        key = secrets.token_urlsafe(12)
        self._kept[key] = done
        if len(self._kept) > DONE_MAX:
            self._kept.popitem(last=False)
        return key

    def find(self, parameters: Mapping[str, str]) -> Done | None:
        return self._kept.get(parameters.get(DONE_PARAMETER, ""))
