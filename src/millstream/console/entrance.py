"""Who enters: finds the session of each request, and sends browsers without one to the log-in.

Browsers have a cookie. Scripts send user and password with every request (`Authorization: Basic`),
or the token of the console (`Authorization: Bearer`); and a header that no other site can make a
browser send, instead of a form's token.
"""

from __future__ import annotations

import base64
import binascii
import logging
from urllib.parse import quote, urlencode

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millstream.console.answers import explain, failure, wants_json
from millstream.console.live import PARAMETER
from millstream.console.sessions import Access, Session, Sessions
from millstream.errors import MillstreamError

SCRIPT_HEADER = "x-millstream-console"
LOG_IN = "/log-in"
TOKEN_PARAMETER = "token"
WITHOUT_SESSION = ("/static/", LOG_IN)

_log = logging.getLogger(__name__)


class Entrance:
    """See the module. Also answers what failed unexpectedly, inside of the guards."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            answer = await self._enter(request)
            if answer is not None:
                await answer(scope, receive, noting)
            else:
                await self._app(scope, receive, noting)
        except Exception as error:
            if started:
                raise
            await log_failure(request, error)(scope, receive, send)

    async def _enter(self, request: Request) -> Response | None:
        """None: go on, with a session where one is needed."""
        sessions: Sessions = request.app.state.sessions
        request.state.is_script = is_script(request.headers)
        request.state.flash = request.app.state.outcomes.find(request.query_params)
        request.state.csrf = ""
        if request.scope["path"].startswith("/static/"):
            return None
        cookie = request.cookies.get(cookie_name(request), "")
        session = sessions.find(cookie) or await _of_script(sessions, request)
        if session is None and sessions.access is Access.TOKEN:
            entered = sessions.enter(request.query_params.get(TOKEN_PARAMETER, ""))
            if entered is not None:
                return set_cookie(request, _without_token(request), entered)
        if session is not None:
            request.state.session = session
            request.state.csrf = sessions.csrf(session)
            return None
        if request.scope["path"] == LOG_IN:
            return None
        return _refuse(request)


def _refuse(request: Request) -> Response:
    is_page = request.method == "GET" and PARAMETER not in request.query_params
    if is_page and not wants_json(request):
        back = request.scope["path"]
        if request.url.query:
            back += f"?{request.url.query}"
        return RedirectResponse(f"{LOG_IN}?{urlencode({'next': back})}", 303)
    return failure(request, HTTPException(401, "log in first"))


async def _of_script(sessions: Sessions, request: Request) -> Session | None:
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer" and sessions.access is Access.TOKEN:
        return sessions.shared if sessions.is_token(given.strip()) else None
    if kind.lower() != "basic" or sessions.access is not Access.LOG_IN:
        return None
    try:
        user, colon, password = base64.b64decode(given, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise HTTPException(400, "the Authorization header is malformed") from None
    if not colon:
        return None
    return await sessions.log_in_once(user, password, address=address_of(request))


def address_of(request: Request) -> str:
    """Where the browser or script is; all are at the address of a proxy, if there is one."""
    return request.client.host if request.client is not None else ""


def is_script(headers: Headers) -> bool:
    """Whether no browser's page can have sent this without asking: only scripts send this header,
    and a browser would ask the console first, which never allows it."""
    return SCRIPT_HEADER in headers and "origin" not in headers


def cookie_name(request: Request) -> str:
    """Browsers share cookies between the ports of a host: consoles must not."""
    server = request.scope.get("server") or ("", 0)
    return f"millstream-console-{server[1] or 0}"


def set_cookie(request: Request, response: Response, value: str) -> Response:
    """An empty value takes it away."""
    response.set_cookie(
        cookie_name(request),
        value,
        max_age=None if value else 0,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


def _without_token(request: Request) -> Response:
    """The same page, so that the token stays in no history and no log."""
    rest = request.url.remove_query_params(TOKEN_PARAMETER).query
    return RedirectResponse(local_path(request.scope["path"] + (f"?{rest}" if rest else "")), 303)


def local_path(path: str) -> str:
    """A path of this console; anything else that a link may contain becomes the first page."""
    if not path.startswith("/") or path.startswith(("//", "/\\")):
        return "/"
    if any(character < " " or character == "\x7f" for character in path):
        return "/"
    return quote(path, safe="/?&=%~:;,@!$'()*+-._#[]")


def log_failure(request: Request, error: Exception) -> Response:
    """The answer, and a line in the log if it is the console's own fault."""
    if explain(error).status == 500:
        _log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    elif not isinstance(error, HTTPException | MillstreamError | OSError):
        _log.debug("%s %s failed", request.method, request.url.path, exc_info=error)
    return failure(request, error)
