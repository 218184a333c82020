"""The HTTP server of a bridge: its address, and its end."""

from __future__ import annotations

import http.client

import pytest

from millstream.bridges.config import HttpConfig
from millstream.bridges.counts import Counts
from millstream.bridges.http.app import Gateway
from millstream.bridges.http.server import HttpServer
from millstream.bridges.sending import Sender
from millstream.errors import MillstreamError
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import request


def gateway(millstream: SharedBroker, listen: str) -> Gateway:
    counts = Counts()
    sender = Sender(millstream.client_settings(), counts)
    return Gateway(
        HttpConfig(listen), sender, lambda *_: pytest.fail("no streams"), counts, lambda *_: []
    )


def test_server_stops_while_a_connection_is_open(millstream: SharedBroker) -> None:
    made = gateway(millstream, "127.0.0.1:0")
    server = HttpServer(made)
    server.start()
    idle = http.client.HTTPConnection(server.address, timeout=60)
    idle.connect()
    assert request(server.address, "GET", "/health") == (200, b"ok\n")
    server.stop()
    idle.close()
    with pytest.raises(OSError):
        request(server.address, "GET", "/health")
    made.sender.close()


def test_address_in_use_is_named(millstream: SharedBroker) -> None:
    made = gateway(millstream, "127.0.0.1:0")
    server = HttpServer(made)
    with pytest.raises(MillstreamError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address"):
        HttpServer(gateway(millstream, server.address))
    server.stop()
    made.sender.close()
