"""JSON over HTTP, against a server of the test's own process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from millstream.connect.sinks.http import JsonServer
from millstream.connect.sinks.sink import SinkUnavailable
from millstream.errors import ConfigError, StoreError


class Handler(BaseHTTPRequestHandler):
    """Answers with the status and the text in the path, and what it was asked."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        _, _, status, text = self.path.split("/")
        if status == "0":
            self.close_connection = True
            return
        authorization = self.headers.get("Authorization", "").encode()
        body = text.encode().replace(b"BODY", content).replace(b"AUTH", authorization)
        self.send_response(int(status))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def server(port: int) -> Iterator[JsonServer]:
    server = JsonServer(f"http://user:a%40b@127.0.0.1:{port}/api/")
    yield server
    server.close()


def test_bodies_are_json_and_the_user_is_named(server: JsonServer) -> None:
    assert server.ask("PUT", "/200/BODY", {"a": 1}) == (200, {"a": 1})
    assert server.ask("PUT", '/404/"AUTH"') == (404, "Basic dXNlcjphQGI=")


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("/503/busy", SinkUnavailable, "answers 503: busy"),
        ("/0/", SinkUnavailable, "cannot be reached"),
        ("/401/who", ConfigError, "refuses PUT /401/who: 401 who"),
        ("/200/html", StoreError, "something else than JSON: html"),
    ],
)
def test_other_answers_say_what_to_do(
    server: JsonServer, path: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        server.ask("PUT", path)
    assert server.ask("PUT", "/200/1").body == 1  # a new connection, where the old one is closed


@pytest.mark.parametrize("url", ["http://", "http://h:port", "ftp://h", "http://h/?x=1"])
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        JsonServer(url)


def test_server_that_is_not_there_is_unavailable() -> None:
    with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1:1 cannot be reached"):
        JsonServer("http://127.0.0.1:1").ask("GET", "/")
