"""Sockets as the file declares them."""

from __future__ import annotations

import pytest
import zmq

from millstream.bridges.config import ZeromqInConfig, ZeromqOutConfig
from millstream.bridges.zeromq.sockets import address_of, close, opened
from millstream.errors import MillstreamError

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


def test_address_that_cannot_be_used_is_named() -> None:
    first = opened(ZeromqOutConfig("a", "pub", "t", ANY))
    taken = address_of(first)
    with pytest.raises(MillstreamError, match=rf"zeromq b: {taken}: Address already in use"):
        opened(ZeromqInConfig("b", "pull", "t", (taken,)))
    close(first)
