"""The server: addresses, start, stop."""

from __future__ import annotations

import threading
import urllib.request

import pytest

from millstream.console.server import ConsoleServer, bind
from millstream.console.settings import ConsoleSettings
from millstream.errors import ConfigError


@pytest.mark.parametrize("listen", ["8080", ":8080", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999"])
def test_addresses_are_checked(listen: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        bind(listen)


def test_address_in_use_is_refused() -> None:
    with bind("127.0.0.1:0") as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            bind(f"127.0.0.1:{port}")


def test_server_starts_and_stops_in_a_thread() -> None:
    server = ConsoleServer(ConsoleSettings("127.0.0.1:1"), "127.0.0.1:0")
    server.start()
    with urllib.request.urlopen(server.url + "static/console.js") as answer:
        assert answer.status == 200
    server.stop()
    assert "console" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(OSError):
        urllib.request.urlopen(server.url)
