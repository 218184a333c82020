"""One request and its answer: what is written, and in which form."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from millstream.console.exchanges import Chunk, Exchange


class Wire:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written = b""
        self.is_writable = True
        self.ended = 0

    def write(self, data: bytes) -> None:
        self.written += data

    async def drain(self) -> None:
        self.is_writable = True

    def read_on(self) -> None:
        pass

    def end(self, exchange: Exchange) -> None:
        self.ended += 1


def exchange(wire: Wire, method: str = "GET", version: str = "1.1", **more: Any) -> Exchange:
    scope = {"method": method, "http_version": version}
    options = {"keeps_open": True, "expects_continue": False} | more
    return Exchange(wire, scope, **options)


def answer(it: Exchange, bodies: list[bytes], *headers: tuple[bytes, bytes]) -> None:
    async def run() -> None:
        start = {"type": "http.response.start", "status": 200, "headers": headers}
        await it.send(start)
        for body in bodies:
            await it.send({"type": "http.response.body", "body": body, "more_body": True})
        await it.send({"type": "http.response.body"})

    asyncio.run(run())


def test_answer_of_unknown_length_is_sent_in_chunks() -> None:
    wire = Wire()
    answer(exchange(wire), [b"ab", b"", b"c" * 16])
    head, _, body = wire.written.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"transfer-encoding: chunked" in head
    assert b"date: " in head
    assert body == b"2\r\nab\r\n10\r\n" + b"c" * 16 + b"\r\n0\r\n\r\n"
    assert wire.ended == 1


def test_answer_with_a_length_is_sent_as_it_is() -> None:
    wire = Wire()
    answer(exchange(wire), [b"ab", b"c"], (b"Content-Length", b"3"))
    assert wire.written.endswith(b"\r\n\r\nabc")
    assert b"chunked" not in wire.written
    for body, error in ((b"abcd", "longer"), (b"ab", "shorter")):
        with pytest.raises(RuntimeError, match=error):
            answer(exchange(Wire()), [body], (b"content-length", b"3"))


def test_old_clients_see_the_end_of_the_connection() -> None:
    wire = Wire()
    it = exchange(wire, version="1.0")
    answer(it, [b"ab"])
    assert wire.written.endswith(b"\r\n\r\nab")
    assert not it.keeps_open
    assert b"connection: close" in wire.written


def test_head_has_no_body() -> None:
    wire = Wire()
    answer(exchange(wire, "HEAD"), [b"abc"], (b"content-length", b"3"))
    assert b"content-length: 3" in wire.written
    assert wire.written.endswith(b"\r\n\r\n")


def test_headers_cannot_be_split() -> None:
    for value in (b"a\r\nset-cookie: x", b"a\nb", b"a\0"):
        with pytest.raises(RuntimeError, match="invalid value"):
            answer(exchange(Wire()), [], (b"location", value))


def test_browser_that_is_gone_gets_nothing() -> None:
    wire = Wire()
    it = exchange(wire)
    it.leave()
    with pytest.raises(ConnectionResetError):
        answer(it, [])
    assert not it.offer(Chunk.of(b"x"))
    assert wire.written == b""
    assert asyncio.run(it.receive()) == {"type": "http.disconnect"}


def test_stream_is_offered_while_the_browser_keeps_up() -> None:
    wire = Wire()
    it = exchange(wire)
    asyncio.run(it.send({"type": "http.response.start", "status": 200}))
    assert it.offer(Chunk.of(b"abc"))
    assert wire.written.endswith(b"\r\n\r\n3\r\nabc\r\n")
    wire.is_writable = False
    assert not it.offer(Chunk.of(b"abc"))


def test_body_comes_in_pieces_and_ends() -> None:
    wire = Wire()

    async def run() -> list[Any]:
        it = exchange(wire, "POST", expects_continue=True)
        it.feed(b"a")
        first = await it.receive()
        it.feed(b"b")
        it.finish()
        return [first, await it.receive()]

    assert asyncio.run(run()) == [
        {"type": "http.request", "body": b"a", "more_body": True},
        {"type": "http.request", "body": b"b", "more_body": False},
    ]
    assert wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
