"""Views over HTTP: `millstream views serve`.

    GET  /views                          the views, their keys and columns
    GET  /views/NAME/rows/KEY[/KEY...]   one row
    GET  /views/NAME/rows?low=&high=     rows in the order of the key: limit=, descending=true
    GET  /views/NAME/changes             server-sent events: what each batch changed
    POST /sql                            a SELECT, or JSON: {"sql": ..., "values": [...]}
    GET  /stamp                          the stamp alone

Every request may name what the views must have seen, and how long to wait for it:
`?at_least=orders:0:41,orders:1:7&timeout=5`. Answers are JSON and have the stamp that they were
read at. An error is `{"error": "..."}`.

Each connection has a thread. Connections, sizes of requests and answers, rows and seconds of
queries, and seconds of waiting are limited. An answer is read completely before it is sent, so a
slow client does not keep a snapshot of the database open. A client that sends its request, or takes
its answer, too slowly is disconnected.

The `Host` of a request must be an address or a name of this server. Otherwise a web page could read
views through the browser of somebody who can reach the server, by a name of its own that it lets
point to the server's address (DNS rebinding).
"""

from __future__ import annotations

import io
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from millstream.connect.tables.rows import plain
from millstream.errors import ConfigError, NotReached, StoreError, TooMuch, ViewError
from millstream.views.events import Follower
from millstream.views.reading import ROWS_MAX, SECONDS_MAX, Snapshot, View, Views
from millstream.views.requests import BadRequest, Request, host_of, is_address, key_of, range_of

_HEARTBEAT_SECONDS = 1.0  # a client that has left is noticed when it is written to
_REQUEST_BYTES_MAX = 1024 * 1024
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_IDLE_SECONDS_MAX = 60.0  # between two requests of a connection
_REQUEST_SECONDS_MAX = 10.0  # from the first byte of a request to its last
_ANSWER_SECONDS_MAX = 60.0
_PENDING_MAX = 128  # connections that are not accepted yet
_STATUS = (  # the first that fits
    (NotReached, HTTPStatus.GATEWAY_TIMEOUT),
    (TooMuch, HTTPStatus.UNPROCESSABLE_ENTITY),
    (ViewError, HTTPStatus.BAD_REQUEST),
    (ConfigError, HTTPStatus.NOT_FOUND),
    (StoreError, HTTPStatus.SERVICE_UNAVAILABLE),
)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What clients may ask for."""

    connections: int = 256
    rows: int = ROWS_MAX
    seconds: float = SECONDS_MAX  # of a query
    wait_seconds: float = 60.0


class TimedSocket(io.RawIOBase):
    """The bytes of a connection, each part of which has to be there in time."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = 0.0
        self._has_begun = False

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def expect_request(self) -> None:
        """Allow the time of one request from now on."""
        self._deadline = time.monotonic() + _IDLE_SECONDS_MAX
        self._has_begun = False

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request takes too long")
        self._connection.settimeout(left)
        count = self._connection.recv_into(buffer)
        if not self._has_begun:
            self._has_begun = True
            self._deadline = min(self._deadline, time.monotonic() + _REQUEST_SECONDS_MAX)
        return count

    def write(self, content: Any) -> int:
        """All of it: `sendall` has one time limit for everything."""
        self._connection.settimeout(_ANSWER_SECONDS_MAX)
        self._connection.sendall(content)
        return len(content)


class ViewServer(ThreadingHTTPServer):
    """Serves views until `shutdown`."""

    daemon_threads = True
    request_queue_size = _PENDING_MAX

    def __init__(
        self,
        address: tuple[str, int],
        views: Views,
        limits: Limits | None = None,
        names: Collection[str] = (),
    ) -> None:
        """`names` are those by which clients know the server, beside its addresses."""
        self.views = views
        self.names = {"localhost", address[0].lower(), *(it.lower() for it in names)}
        self.limits = limits or Limits()
        self.stopping = threading.Event()
        self._free = threading.BoundedSemaphore(self.limits.connections)
        super().__init__(address, Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            try:
                super().process_request(request, client_address)
            except RuntimeError:  # there is no room for another thread
                self._free.release()
                raise
            return
        text = f"there are {self.limits.connections} connections already; try again later"
        body = _json({"error": text})
        head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Length: {len(body)}\r\n"
        request.settimeout(_HEARTBEAT_SECONDS)
        try:
            request.sendall(
                f"{head}Content-Type: application/json\r\nConnection: close\r\n\r\n".encode() + body
            )
        finally:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no error."""
        if not isinstance(sys.exception(), OSError):
            _log.exception("a connection of %s failed", client_address)

    def shutdown(self) -> None:
        self.stopping.set()
        super().shutdown()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_version = "millstream"
    sys_version = ""
    # An answer is one packet if it is small. Two would cost 40 ms: Nagle's algorithm holds the
    # second back until the client has acknowledged the first.
    disable_nagle_algorithm = True
    server: ViewServer

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._bytes = TimedSocket(self.connection)
        self.rfile = io.BufferedReader(self._bytes)
        self.wfile = io.BufferedWriter(self._bytes)

    def handle_one_request(self) -> None:
        self._bytes.expect_request()
        super().handle_one_request()

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Requests are not logged."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the standard library refuses, such as unknown methods, is JSON too."""
        self.close_connection = True
        self.request_version = self.protocol_version  # 0.9, which has no headers, if unknown
        self._respond(HTTPStatus(code), _json({"error": message or HTTPStatus(code).phrase}))

    def _answer(self, handle: Callable[[Request], None]) -> None:
        try:
            handle(self._request())
        except BadRequest as error:
            self._fail(error.status, str(error))
        except (ViewError, ConfigError, StoreError) as error:
            status = next(it for kind, it in _STATUS if isinstance(error, kind))
            self._fail(status, str(error))
        except OSError:
            raise  # the client has left
        except Exception:  # noqa: BLE001  # the client gets an answer, and the log the cause
            _log.exception("%s %s failed", self.command, self.path)
            self.close_connection = True
            self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, "the request failed: see the server's log")

    def _check_host(self) -> None:
        given = self.headers.get("Host")
        if given is None:
            return  # no browser leaves it out
        name = host_of(given)
        if name is None or not (is_address(name) or name in self.server.names):
            self.close_connection = True
            raise BadRequest(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"this server does not answer to the name {name or 'of the request'}: start it "
                "with --host-name, or use its address",
            )

    def _request(self) -> Request:
        self._check_host()
        if self.headers.get("Transfer-Encoding") is not None:
            self.close_connection = True
            raise BadRequest(HTTPStatus.LENGTH_REQUIRED, "send the body with a Content-Length")
        text = self.headers.get("Content-Length", "0")
        if not (text.isascii() and text.isdigit()) or int(text) > _REQUEST_BYTES_MAX:
            self.close_connection = True
            raise BadRequest(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"Content-Length {text}: a request has at most {_REQUEST_BYTES_MAX} bytes",
            )
        return Request.parse(
            self.path, self.rfile.read(int(text)), self.headers.get("Content-Type", "")
        )

    def _get(self, request: Request) -> None:
        match request.path:
            case ["views"]:
                self._send(request, lambda v: {"views": {it: _described(v[it]) for it in v}})
            case ["stamp"]:
                self._send(request, lambda v: {})
            case ["views", name, "rows"]:
                self._send(request, lambda v: {"rows": self._range(_view(v, name), request)})
            case ["views", name, "rows", *key]:
                self._send(request, lambda v: {"row": _row(_view(v, name), key)})
            case ["views", name, "changes"]:
                self._follow(name, request)
            case ["sql"]:
                raise BadRequest(HTTPStatus.METHOD_NOT_ALLOWED, "send queries with POST")
            case _:
                raise BadRequest(HTTPStatus.NOT_FOUND, f"there is nothing at {self.path}")

    def _post(self, request: Request) -> None:
        if request.path != ["sql"]:
            raise BadRequest(HTTPStatus.NOT_FOUND, f"nothing at {self.path} takes a POST")
        text, values = request.query()
        limits = self.server.limits
        self._send(
            request,
            lambda v: {
                "rows": v.sql(text, values, rows_max=limits.rows, seconds_max=limits.seconds)
            },
        )

    def _range(self, view: View, request: Request) -> list[dict[str, Any]]:
        low, high, limit, is_descending = range_of(view, request, self.server.limits.rows)
        return view.range(low, high, limit=limit, descending=is_descending)

    def _send(self, request: Request, find: Callable[[Snapshot], Mapping[str, Any]]) -> None:
        timeout = request.timeout(self.server.limits.wait_seconds)
        with self.server.views.read(request.at_least(), timeout=timeout) as v:
            answer = {**find(v), "stamp": v.stamp.as_json()}
        body = _json(answer)
        if len(body) > _ANSWER_BYTES_MAX:
            raise TooMuch(
                f"the answer has {len(body)} bytes, more than {_ANSWER_BYTES_MAX}: ask for fewer "
                "rows or columns"
            )
        self._respond(HTTPStatus.OK, body)

    def _follow(self, name: str, request: Request) -> None:
        """Events until the client leaves or the server stops."""
        after = self.headers.get("Last-Event-ID") or request.given.get("after")
        timeout = request.timeout(self.server.limits.wait_seconds)
        follower = Follower(name, after)
        with self.server.views.read(request.at_least(), timeout=timeout) as v:
            _view(v, name)
            events = follower.next_events(v)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self._send_events(follower, events)
        except (ViewError, ConfigError, StoreError) as error:
            self._send_failure(str(error))
        except OSError:
            raise  # the client has left
        except Exception:  # noqa: BLE001  # the client gets an event, and the log the cause
            _log.exception("%s %s failed", self.command, self.path)
            self._send_failure("the request failed: see the server's log")

    def _send_events(self, follower: Follower, events: list[str]) -> None:
        with self.server.views.watch() as watch:
            while not self.server.stopping.is_set():
                for event in events or [": waiting\n\n"]:
                    self.wfile.write(event.encode())
                self.wfile.flush()
                if not events:
                    watch.wait(_HEARTBEAT_SECONDS)
                try:
                    with self.server.views.read(timeout=0) as v:
                        events = follower.next_events(v)
                except NotReached:  # queries that have no common cut now
                    events = []

    def _send_failure(self, message: str) -> None:
        """As an event: the headers of the response have been sent."""
        self.wfile.write(f"event: failed\ndata: {_json({'error': message}).decode()}\n\n".encode())

    def _fail(self, status: HTTPStatus, message: str) -> None:
        self._respond(status, _json({"error": message}))

    def _respond(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


def _view(v: Snapshot, name: str) -> View:
    if name not in set(v):
        known = ", ".join(sorted(v))
        raise BadRequest(HTTPStatus.NOT_FOUND, f"there is no view {name}; there are {known}")
    return v[name]


def _row(view: View, key: list[str]) -> dict[str, Any]:
    row = view.get(*key_of(view, key))
    if row is None:
        shown = "/".join(key)
        raise BadRequest(HTTPStatus.NOT_FOUND, f"{view.entry.view} has no row with key {shown}")
    return row


def _described(view: View) -> dict[str, Any]:
    columns = {it.name: str(it) for it in view.entry.columns}
    return {"key": list(view.entry.key), "columns": columns}


def _json(value: Any) -> bytes:
    return json.dumps(plain(value), ensure_ascii=False, default=str).encode("utf-8", "replace")
