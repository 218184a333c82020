"""One connection to another broker, which may cut it, garble it or say nothing."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from millstream.broker.peers.connection import (
    RECEIVE_BYTES,
    RESPONSE_BYTES_MAX,
    PeerConnection,
    PeerError,
    api_of,
)
from tests.broker.peers.brokers import Serve, raw_server
from tests.peers.patience import PATIENCE_SECONDS

HEARTBEAT = api_of("heartbeat")
OLD, FLEXIBLE = 3, 4  # versions of Heartbeat without and with tagged fields


async def read_request(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The correlation id, and what follows the client id."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    frame = await reader.readexactly(size)
    _, _, correlation_id, client_bytes = struct.unpack_from(">hhih", frame)
    return correlation_id, frame[10 + client_bytes :]


def frame(correlation_id: int, body: bytes) -> bytes:
    return struct.pack(">ii", 4 + len(body), correlation_id) + body


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(frame(*await read_request(reader)))


def run(serve: Serve, test: Callable[[PeerConnection], Awaitable[Any]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with raw_server(serve) as (host, port):
            connection = PeerConnection(loop, "broker 2", "me")
            await loop.create_connection(lambda: connection, host, port)
            try:
                await test(connection)
            finally:
                connection.close("the test is over")

    asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_SECONDS))


def send(
    connection: PeerConnection,
    body: bytes,
    version: int = OLD,
    timeout_seconds: float = PATIENCE_SECONDS,
) -> asyncio.Future[memoryview]:
    return connection.send(HEARTBEAT, version, body, timeout_seconds=timeout_seconds)


async def check_lost(connection: PeerConnection, body: bytes, words: str, **how: Any) -> None:
    answers = [send(connection, body, **how), send(connection, b"later")]
    for answer in answers:
        with pytest.raises(PeerError, match=words):
            await answer
    assert len(connection) == 0
    with pytest.raises(PeerError, match=words):
        send(connection, body)


@pytest.mark.parametrize("size", [0, 1, 1000, RECEIVE_BYTES - 9, RECEIVE_BYTES - 8, RECEIVE_BYTES])
def test_requests_are_pipelined_and_answered_in_order(size: int) -> None:
    async def test(connection: PeerConnection) -> None:
        bodies = [bytes([number]) * size for number in range(20)]
        answers = [send(connection, body) for body in bodies]
        assert len(connection) == 20
        assert [bytes(answer) for answer in await asyncio.gather(*answers)] == bodies
        assert len(connection) == 0

    run(echo, test)


def test_body_may_come_in_pieces_and_tags_are_not_part_of_it() -> None:
    async def test(connection: PeerConnection) -> None:
        answer = connection.send(HEARTBEAT, FLEXIBLE, [b"ab", b"", b"c"], timeout_seconds=60)
        assert bytes(await answer) == b"abc"  # the request's tags come back as the response's

    run(echo, test)


def test_long_responses_keep_their_own_buffer() -> None:
    async def test(connection: PeerConnection) -> None:
        bodies = [bytes([number]) * 3_000_000 for number in range(3)]
        answers = [await send(connection, body) for body in bodies]
        assert [bytes(answer) for answer in answers] == bodies
        for answer, body in zip(answers, bodies, strict=True):
            assert isinstance(answer.obj, bytearray)  # where the socket put it
            assert len(answer.obj) == len(body) + 4

    run(echo, test)


def test_responses_are_put_together_from_any_pieces() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers = b"".join([frame(*await read_request(reader)) for _ in range(4)])
        for position in range(len(answers)):
            writer.write(answers[position : position + 1])
            await writer.drain()
            await asyncio.sleep(0)

    async def test(connection: PeerConnection) -> None:
        bodies = [b"", b"a", b"bcd", b"e" * 100]
        answers = await asyncio.gather(*(send(connection, body) for body in bodies))
        assert [bytes(answer) for answer in answers] == bodies

    run(serve, test)


def test_connection_that_is_cut_fails_all_requests() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.close()

    run(serve, lambda connection: check_lost(connection, b"x", "connection"))


def test_connection_that_is_cut_inside_a_response_fails_all_requests() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        correlation_id, body = await read_request(reader)
        writer.write(frame(correlation_id, body)[:-1])
        await writer.drain()
        writer.close()

    for size in (10, 2 * RECEIVE_BYTES):
        run(serve, lambda connection, size=size: check_lost(connection, bytes(size), "connection"))


@pytest.mark.parametrize(
    ("garbage", "words"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "answered request"),
        (b"\0" * 8, "answered request"),
        (b"\xff" * 8, "answered request"),
    ],
)
def test_garbage_closes_the_connection(garbage: bytes, words: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(garbage)
        await reader.read()

    run(serve, lambda connection: check_lost(connection, b"x", words))


@pytest.mark.parametrize("size", [-1, 3, RESPONSE_BYTES_MAX + 1])
def test_impossible_length_closes_the_connection(size: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        correlation_id, _ = await read_request(reader)
        writer.write(struct.pack(">ii", size, correlation_id))
        await reader.read()

    run(serve, lambda connection: check_lost(connection, b"x", f"response of {size} bytes"))


def test_response_that_nobody_asked_for_closes_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        correlation_id, body = await read_request(reader)
        writer.write(frame(correlation_id, body) + frame(correlation_id, body))
        await reader.read()

    async def test(connection: PeerConnection) -> None:
        assert bytes(await send(connection, b"x")) == b"x"
        while connection.lost is None:
            await asyncio.sleep(0.001)
        assert "answered request" in connection.lost

    run(serve, test)


def test_response_that_ends_in_its_header_closes_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        correlation_id, _ = await read_request(reader)
        writer.write(frame(correlation_id, b""))
        await reader.read()

    run(serve, lambda connection: check_lost(connection, b"x", "header", version=FLEXIBLE))


def test_request_without_an_answer_in_time_closes_the_connection() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    run(serve, lambda it: check_lost(it, b"x", "no answer to heartbeat", timeout_seconds=0.05))


def test_caller_that_gives_up_does_not_disturb_the_others() -> None:
    async def test(connection: PeerConnection) -> None:
        given_up, kept = send(connection, b"a"), send(connection, b"b")
        given_up.cancel()
        assert bytes(await kept) == b"b"
        assert connection.lost is None

    run(echo, test)
