"""Clients that send requests and read nothing: a real server's memory stays within its limits."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.peers.servers import Server, start_millstream
from tests.peers.wire import Wire, batch, produce_fields, request_frame

MB = 1024 * 1024
HOSTILE = 50
BYTES_MAX = 32 * MB
# Python's allocator and the sockets' bookkeeping are not counted, and each may hold a batch.
GROWTH_BYTES_MAX = 3 * BYTES_MAX


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    settings = {
        "millstream.queued.max.response.bytes": str(BYTES_MAX),
        "queued.max.request.bytes": str(BYTES_MAX),
    }
    server = start_millstream(tmp_path / "data", settings)
    yield server
    server.kill()


def resident_bytes(server: Server) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


def fill(wire: Wire, topic: str) -> None:
    wire.call("metadata", 12, topics=({"name": topic},), allow_auto_topic_creation=True)
    for _ in range(8):
        wire.call("produce", 9, **produce_fields(topic, batch([b"x" * 500_000])))


def fetch_frames(topic: str, count: int) -> bytes:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 50 * MB}
    fields = {
        "max_bytes": 50 * MB,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
    }
    return b"".join(request_frame("fetch", 11, n, **fields) for n in range(count))


def ping(wire: Wire, count: int) -> None:
    for _ in range(count):
        assert wire.call("api_versions", 0).error_code == 0


def test_unread_responses_take_bounded_memory(server: Server) -> None:
    with Wire(server.bootstrap) as neighbour, contextlib.ExitStack() as stack:
        fill(neighbour, "t")
        ping(neighbour, 100)
        before = resident_bytes(server)
        requests = fetch_frames("t", 300)
        for _ in range(HOSTILE):
            stack.enter_context(Wire(server.bootstrap)).send(requests)
        ping(neighbour, 1000)
        neighbour.send(fetch_frames("t", 1))
        assert len(neighbour.receive_frame()) > 500_000
        assert resident_bytes(server) - before < GROWTH_BYTES_MAX


def test_incomplete_requests_take_bounded_memory(server: Server) -> None:
    with Wire(server.bootstrap) as neighbour, contextlib.ExitStack() as stack:
        ping(neighbour, 100)
        before = resident_bytes(server)
        beginning = struct.pack(">i", 90 * MB) + bytes(4 * MB)
        for _ in range(HOSTILE):
            hostile = stack.enter_context(Wire(server.bootstrap))
            hostile.socket.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                for start in range(0, len(beginning), 65_536):
                    hostile.socket.send(beginning[start : start + 65_536])
            ping(neighbour, 20)
        ping(neighbour, 1000)
        assert resident_bytes(server) - before < GROWTH_BYTES_MAX
