"""Connections that send nothing, or too much, are closed."""

from __future__ import annotations

import socket

import pytest

from millstream.console import connections
from tests.console.conftest import Console


def connect(console: Console) -> socket.socket:
    host, port = console.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_connection_that_sends_no_request_is_closed(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADERS_SECONDS_MAX", 0.1)
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: "):
        with connect(console) as raw:
            raw.sendall(sent)
            assert raw.recv(1) == b""
    with connect(console) as raw:  # the second request of a connection does not come
        raw.sendall(b"GET /static/none HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert raw.recv(1) == b"H"
        raw.sendall(b"GET / HTTP/1.1\r\nHost: ")
        while raw.recv(10_000):
            pass


def test_headers_are_limited(console: Console) -> None:
    with connect(console) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        lines = (b"X-Long: " + b"x" * 1000 + b"\r\n") * 100_000
        with pytest.raises(OSError):
            raw.sendall(lines)


def test_connections_are_limited(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ACCEPTED_MAX", 0)
    with connect(console) as raw:
        assert raw.recv(1) == b""
    monkeypatch.setattr(connections, "ACCEPTED_MAX", 100)
    assert console.get("/static/console.css")[0] == 200
