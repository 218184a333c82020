"""Requests to endpoints: a real server that answers, redirects, stalls, or may not be called."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from millstream.bridges.config import WebhookConfig
from millstream.bridges.webhooks.posting import post

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)
received: list[tuple[str, bytes, dict[str, str]]] = []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        received.append((self.path, body, dict(self.headers)))
        if self.path == "/slow":
            for _ in range(200):  # each in time, and never an end
                self.wfile.write(b"HTTP/1.1 200 OK\r\nx: " if _ == 0 else b"y")
                if threading.Event().wait(0.05):
                    break
            return
        if self.path == "/stalled":
            threading.Event().wait(5)
            return
        self.send_response(302 if self.path == "/moved" else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Retry-After", "7")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    received.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def config(url: str, **given: object) -> WebhookConfig:
    return WebhookConfig("a", ("t",), url, (b"k" * 24,), **{"allow": LOOPBACK, **given})  # type: ignore[arg-type]


def test_request_has_body_headers_and_host(port: int) -> None:
    answer = post(config(f"http://localhost:{port}/in?x=1"), b"body", {"webhook-id": "1"})
    assert (answer.status, answer.retry_after, answer.error) == (200, "7", "")
    ((path, body, headers),) = received
    assert (path, body, headers["webhook-id"]) == ("/in?x=1", b"body", "1")
    assert headers["Host"] == f"localhost:{port}"


def test_redirection_is_not_followed(port: int) -> None:
    assert post(config(f"http://127.0.0.1:{port}/moved"), b"", {}).status == 302
    assert len(received) == 1


def test_private_address_is_not_called(port: int) -> None:
    answer = post(config(f"http://127.0.0.1:{port}/in", allow=()), b"", {})
    assert "not a public address" in answer.error
    assert received == []


def test_endpoint_that_answers_byte_by_byte_is_given_up(port: int) -> None:
    began = time.monotonic()
    slow = post(config(f"http://127.0.0.1:{port}/slow", timeout_seconds=0.5), b"", {})
    assert slow.error == "TimeoutError: timed out after 0.5 s"
    assert time.monotonic() - began < 8  # the endpoint would take ten seconds


def test_http_goes_to_listed_addresses_only() -> None:
    answer = post(config("http://8.8.8.8:9/"), b"", {})
    assert answer.error == "8.8.8.8 is 8.8.8.8, which is not in `allow`: use https"


def test_stalled_and_missing_endpoints_are_errors(port: int) -> None:
    stalled = post(config(f"http://127.0.0.1:{port}/stalled", timeout_seconds=0.3), b"", {})
    assert "timed out" in stalled.error.lower()
    assert post(config("http://127.0.0.1:1/"), b"", {}).error.startswith("ConnectionRefused")
    assert "SSL" in post(config(f"https://127.0.0.1:{port}/"), b"", {}).error
