"""`/log-in`: with a user of the cluster, or the token of the console."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from millstream.console.actions import Form, Refused, post, read_form
from millstream.console.answers import explain, render
from millstream.console.entrance import LOG_IN, address_of, cookie_name, local_path, set_cookie
from millstream.console.sessions import Access, Sessions
from millstream.errors import ApiError, MillstreamError
from millstream.models import dataclass

USER_CHARACTERS_MAX = 1_000


@dataclass(frozen=True)
class LogIn:
    """The model: how to log in, and why the last attempt failed."""

    access: Access
    next: str
    user: str = ""
    problem: str = ""


async def show(request: Request) -> Response:
    sessions: Sessions = request.app.state.sessions
    back = local_path(request.query_params.get("next", "/"))
    if request.state.csrf:
        return RedirectResponse(back, 303)
    return render(request, "log_in.html", LogIn(sessions.access, back))


async def enter(request: Request) -> Response:
    """Without a form's token, since there is no session yet: `guards` refuse other sites."""
    form = await read_form(request)
    sessions: Sessions = request.app.state.sessions
    back = local_path(form.text("next") or "/")
    user = form.text("user")[:USER_CHARACTERS_MAX]
    try:
        cookie = await _cookie(sessions, user, form, address_of(request))
    except (MillstreamError, OSError) as error:
        problem = str(error) if isinstance(error, Refused) else explain(error).message
        status = 401 if isinstance(error, ApiError | Refused) else explain(error).status
        model = LogIn(sessions.access, back, user, problem)
        return render(request, "log_in.html", model, status=status)
    return set_cookie(request, RedirectResponse(back, 303), cookie)


async def _cookie(sessions: Sessions, user: str, form: Form, address: str) -> str:
    if sessions.access is Access.OPEN:
        raise HTTPException(404, "this console needs no log-in")
    if sessions.access is Access.TOKEN:
        cookie = sessions.enter(form.get("token"))
        if cookie is None:
            raise Refused("that is not the token which the console printed when it started")
        return cookie
    if not user or not form.text("password"):
        raise Refused("type a user and its password")
    return (await sessions.log_in(user, form.text("password"), address=address)).id


async def leave(request: Request, form: Form) -> Response:
    sessions: Sessions = request.app.state.sessions
    sessions.log_out(request.cookies.get(cookie_name(request), ""))
    return set_cookie(request, RedirectResponse(LOG_IN, 303), "")


ROUTES = [
    Route(LOG_IN, show, methods=["GET"]),
    Route(LOG_IN, enter, methods=["POST"]),
    post("/log-out", leave),
]
