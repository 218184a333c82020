"""Sockets as the file declares them."""

from __future__ import annotations

import pytest
import zmq

from millstream.bridges.config import CurveConfig, ZeromqInConfig, ZeromqOutConfig
from millstream.bridges.zeromq.sockets import Keys, address_of, close, opened
from millstream.errors import MillstreamError
from tests.bridges.zeromq.conftest import PATIENCE_MS

ANY = ("tcp://127.0.0.1:*",)


def test_limits_are_those_of_the_file() -> None:
    made = opened(ZeromqInConfig("a", "sub", "t", ANY, hwm=7, message_bytes_max=99))
    assert made.getsockopt(zmq.RCVHWM) == 7
    assert made.getsockopt(zmq.MAXMSGSIZE) == 99
    assert address_of(made).startswith("tcp://127.0.0.1:")
    close(made)
    made = opened(ZeromqOutConfig("a", "push", "t", ANY, hwm=7))
    assert made.getsockopt(zmq.SNDHWM) == 7
    assert made.getsockopt(zmq.IMMEDIATE) == 1
    close(made)


def push_with(
    context: zmq.Context[zmq.Socket[bytes]], address: str, **keys: bytes
) -> zmq.Socket[bytes]:
    """Another program that sends one message, with its key in it."""
    out = context.socket(zmq.PUSH)
    for name, value in keys.items():
        setattr(out, name, value)
    out.connect(address)
    out.send(b"hello from " + (keys.get("curve_publickey") or b"nobody"))
    return out  # it is closed when nothing refers to it


def test_curve_server_takes_messages_of_clients_that_it_knows(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    server_public, server_secret = zmq.curve_keypair()
    known_public, known_secret = zmq.curve_keypair()
    other_public, other_secret = zmq.curve_keypair()
    keys = Keys(CurveConfig(server_secret, None, (known_public,)))
    into = opened(ZeromqInConfig("a", "pull", "t", ANY), keys)
    into.setsockopt(zmq.RCVTIMEO, PATIENCE_MS)
    address = address_of(into)
    plain = push_with(context, address)  # not encrypted
    other = push_with(
        context, address,
        curve_publickey=other_public, curve_secretkey=other_secret, curve_serverkey=server_public,
    )  # fmt: skip
    known = push_with(
        context, address,
        curve_publickey=known_public, curve_secretkey=known_secret, curve_serverkey=server_public,
    )  # fmt: skip
    assert into.recv() == b"hello from " + known_public
    assert into.poll(200) == 0, "a stranger was let in"
    for each in (plain, other, known):
        each.close(0)
    keys.stop()
    close(into)


def test_curve_client_sends_to_the_server_whose_key_it_has(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    server_public, server_secret = zmq.curve_keypair()
    _, secret = zmq.curve_keypair()
    into = context.socket(zmq.PULL)
    into.curve_server = True
    into.curve_secretkey = server_secret
    into.bind("tcp://127.0.0.1:*")
    keys = Keys(CurveConfig(secret, server_public))
    out = opened(ZeromqOutConfig("a", "push", "t", connect=(address_of(into),)), keys)
    out.send(b"hello")
    assert into.recv() == b"hello"
    keys.stop()
    close(out)


def test_address_that_cannot_be_used_is_named() -> None:
    first = opened(ZeromqOutConfig("a", "pub", "t", ANY))
    taken = address_of(first)
    with pytest.raises(MillstreamError, match=rf"zeromq b: {taken}: Address already in use"):
        opened(ZeromqInConfig("b", "pull", "t", (taken,)))
    close(first)
