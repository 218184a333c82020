"""Buffers of UDP sockets, and what the kernel dropped."""

from __future__ import annotations

import socket
import sys

import pytest

from millstream.bridges.udp import grow_buffer, kernel_drops


def test_buffer_grows_as_far_as_the_kernel_lets_it() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        before = opened.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
        assert grow_buffer(opened, 2 * before) > before // 2


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not tell")
def test_drops_are_exact() -> None:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as into,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out,
    ):
        grow_buffer(into, 4096)
        into.bind(("127.0.0.1", 0))
        assert kernel_drops(into) == 0
        for _ in range(100):
            out.sendto(b"x" * 100, into.getsockname())
        dropped = kernel_drops(into)
        into.setblocking(False)
        received = 0
        try:
            while into.recv(1000):
                received += 1
        except BlockingIOError:
            pass
        assert dropped is not None
        assert dropped > 0
        assert received + dropped == 100
