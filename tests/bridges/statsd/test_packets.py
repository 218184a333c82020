"""Packets in the ring, between the thread that reads the socket and the one that parses."""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from millstream.bridges.statsd._packets import PacketRing
from tests.bridges.conftest import PATIENCE_SECONDS, wait_for

RING_BYTES = 4 * 65_536


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """A socket that sends, and one that receives."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as into,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out,
    ):
        into.bind(("127.0.0.1", 0))
        into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 20_000))
        out.connect(into.getsockname())
        yield out, into


def test_packets_of_all_sizes_come_out_whole_and_in_order(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """Many times the size of the ring, so that they go around its end."""
    out, into = pair
    ring, dice = PacketRing(RING_BYTES), random.Random(1)
    thread = threading.Thread(target=ring.fill, args=(into.fileno(),))
    thread.start()
    found: list[bytes] = []

    def take(line: bytes) -> int:
        found.append(line)
        return 1

    sent: list[bytes] = []
    until = time.monotonic() + PATIENCE_SECONDS
    for number in range(200):
        size = dice.choice([1, 2, 3, 4, 5, 100, 8_000, 65_000])
        sent.append((b"%d," % number).ljust(size, b"x"))
        out.send(sent[-1])
        while len(found) < len(sent) - 10:
            ring.drain(None, take, 7)
            assert time.monotonic() < until
    ring.stop()
    samples = 0
    while not ring.is_over:
        samples += ring.drain(None, take, 100)[1]
        assert time.monotonic() < until
    thread.join()
    assert found == sent


def test_full_ring_waits_and_loses_nothing_that_was_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    out, into = pair
    ring = PacketRing(RING_BYTES)
    for _ in range(8):
        out.send(b"x" * 60_000)
    thread = threading.Thread(target=ring.fill, args=(into.fileno(),))
    thread.start()
    lines: list[int] = []

    def take(line: bytes) -> int:
        lines.append(len(line))
        return 1

    def is_drained() -> bool:
        ring.drain(None, take, 1)
        return len(lines) == 8

    wait_for(is_drained)
    ring.close()  # ends at once, or after the time limit of the socket
    thread.join()
    assert lines == [60_000] * 8


def test_failure_of_a_line_loses_no_other_packet(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    out, into = pair
    ring = PacketRing(RING_BYTES)
    for packet in (b"bad", b"good"):
        out.send(packet)
    ring.stop()
    ring.fill(into.fileno())
    lines: list[bytes] = []

    def take(line: bytes) -> int:
        if line == b"bad":
            raise RuntimeError("broken")
        lines.append(line)
        return 1

    with pytest.raises(RuntimeError, match="broken"):
        ring.drain(None, take, 10)
    assert ring.drain(None, take, 10) == (1, 1)
    assert lines == [b"good"]


def test_socket_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        PacketRing(RING_BYTES).fill(-1)
    with pytest.raises(ValueError, match="power of two"):
        PacketRing(RING_BYTES + 1)
