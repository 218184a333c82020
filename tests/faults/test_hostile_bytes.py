"""Thousands of bad frames: one log line each, no traceback, and the memory comes back."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.peers.servers import Server, start_millstream
from tests.peers.wire import (
    Wire,
    batch,
    entity_class,
    frame,
    produce_fields,
    request_frame,
    request_header,
)

MEMORY_GROWTH_BYTES_MAX = 32 * 1024 * 1024
FRAME_BYTES_MAX = 100 * 1024 * 1024


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = start_millstream(tmp_path / "data")
    yield server
    server.kill()


def resident_bytes(server: Server) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


def log_of(server: Server) -> str:
    return server.data.with_name(server.data.name + ".log").read_text()


def send_and_wait(server: Server, data: bytes) -> None:
    """Send bytes on a connection of their own until the server answers or closes it."""
    with Wire(server.bootstrap, timeout_seconds=10) as wire, contextlib.suppress(OSError):
        wire.send(data)
        wire.is_closed()


def header(api: str, version: int) -> bytes:
    return request_header(entity_class(api, version, "request"))


HUGE = struct.pack(">i", 2**31 - 1)
LIES = [
    header("metadata", 1) + HUGE,
    header("fetch", 4) + struct.pack(">iiiibi", -1, 0, 0, 1000, 0, 2**31 - 1),
    header("produce", 3) + struct.pack(">hhii", -1, -1, 1000, 2**31 - 1),
    header("produce", 9) + b"\x00\xff\xff\x00\x00\x03\xe8\xff\xff\xff\xff\x0f",
    header("list_offsets", 1) + struct.pack(">i", -1) + HUGE,
    header("create_topics", 2) + HUGE,
    header("describe_configs", 1) + HUGE,
    header("join_group", 2) + b"\x00\x01g" + struct.pack(">ii", 1, 1) + b"\x00\x00\x00\x01x" + HUGE,
    header("offset_fetch", 8) + b"\xff\xff\xff\xff\x07",
    header("metadata", 12) + b"\xff\xff\xff\xff\x07",
]


@pytest.mark.parametrize("lie", LIES)
def test_length_field_allocates_nothing_by_itself(server: Server, lie: bytes) -> None:
    send_and_wait(server, request_frame("api_versions", 0))
    before = resident_bytes(server)
    for _ in range(20):
        send_and_wait(server, frame(lie))
    assert resident_bytes(server) - before < MEMORY_GROWTH_BYTES_MAX / 2
    assert "Traceback" not in log_of(server)


def test_frame_announced_but_not_sent_costs_nothing(server: Server) -> None:
    send_and_wait(server, request_frame("api_versions", 0))
    before = resident_bytes(server)
    waiting = [Wire(server.bootstrap) for _ in range(50)]
    for wire in waiting:
        wire.send(struct.pack(">i", FRAME_BYTES_MAX - 100) + b"\x00\x00\x00\x09")
    send_and_wait(server, request_frame("api_versions", 0))
    assert resident_bytes(server) - before < MEMORY_GROWTH_BYTES_MAX
    for wire in waiting:
        wire.socket.close()


def test_memory_comes_back_after_a_storm_of_bad_input(server: Server) -> None:
    dice = random.Random(11)
    good = request_frame("produce", 9, **produce_fields("storm", batch([b"x" * 200_000])))
    with Wire(server.bootstrap) as wire:
        wire.call("metadata", 12, topics=({"name": "storm"},))
        for _ in range(20):  # warm: every import and buffer that ordinary work needs
            wire.send(good)
            wire.receive("produce", 9)
        before = resident_bytes(server)
        for number in range(600):
            damaged = bytearray(good)
            for _ in range(dice.randrange(1, 20)):
                damaged[dice.randrange(4, 120)] = dice.randrange(256)
            if number % 3 == 0:
                damaged = damaged[: dice.randrange(4, len(damaged))]
                with Wire(server.bootstrap) as cut:
                    cut.send(bytes(damaged))
            else:
                send_and_wait(server, bytes(damaged))
        wire.send(good)
        answer = wire.receive("produce", 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
    assert resident_bytes(server) - before < MEMORY_GROWTH_BYTES_MAX
    assert "Traceback" not in log_of(server)


def test_bad_frame_is_logged_in_one_line(server: Server) -> None:
    send_and_wait(server, request_frame("api_versions", 0))  # it has said that it is ready
    before = log_of(server).count("\n")
    send_and_wait(server, struct.pack(">i", -5))
    send_and_wait(server, frame(LIES[0]))
    lines = log_of(server).splitlines()[before:]
    assert len(lines) == 2
    assert all("127.0.0.1" in line for line in lines)


def test_client_that_leaves_before_its_answer_is_no_error(server: Server) -> None:
    for _ in range(200):
        with Wire(server.bootstrap) as wire:
            wire.send(request_frame("metadata", 12, topics=None))
    send_and_wait(server, request_frame("api_versions", 0))
    assert "Traceback" not in log_of(server)
