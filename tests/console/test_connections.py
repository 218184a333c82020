"""Connections: requests in a row, bodies, browsers that leave, and those that send nothing, or too
much."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from millstream.console import connections
from millstream.console.connections import HttpServer
from millstream.console.server import bind

App = Callable[[Any, Any, Any], Any]
GET = b"GET /%b HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the path and the body."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    content = f"{scope['method']} {scope['path']}?{scope['query_string'].decode()} ".encode() + body
    headers = [(b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": content})


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        self.writer.write(data)
        return await self.answer()

    async def answer(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = [it.split(b": ") for it in head.split(b"\r\n")[1:-2]]
        fields = {it[0].lower(): it[1] for it in lines}
        body = await self.reader.readexactly(int(fields[b"content-length"]))
        return int(head.split()[1]), body

    async def is_closed(self) -> bool:
        with contextlib.suppress(ConnectionResetError):
            return await self.reader.read() == b""
        return True


@contextlib.asynccontextmanager
async def serving(app: App) -> AsyncIterator[Callable[[], Any]]:
    listening = bind("127.0.0.1:0")
    server = HttpServer(app)
    await server.start(listening)
    writers = []

    async def connect() -> Client:
        reader, writer = await asyncio.open_connection(*listening.getsockname()[:2])
        writers.append(writer)
        return Client(reader, writer)

    try:
        yield connect
    finally:
        for writer in writers:
            writer.close()
        await server.stop()
        while server.connections:
            await asyncio.sleep(0.01)


def run(test: Callable[[Any], Any], app: App = echo) -> None:
    async def start() -> None:
        async with asyncio.timeout(120), serving(app) as connect:
            await test(connect)

    asyncio.run(start())


def test_requests_of_a_connection_are_answered_in_order() -> None:
    async def test(connect: Any) -> None:
        client = await connect()
        assert await client.ask(GET % b"a%20b?c=d") == (200, b"GET /a b?c=d ")
        post = b"POST /p HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        client.writer.write(GET % b"1" + post + GET % b"2")
        answers = [await client.answer() for _ in range(3)]
        assert [body for _, body in answers] == [b"GET /1? ", b"POST /p? abc", b"GET /2? "]
        last = b"GET /3 HTTP/1.1\r\nConnection: close\r\n\r\n"
        assert await client.ask(last) == (200, b"GET /3? ")
        assert await client.is_closed()

    run(test)


def test_large_bodies_come_whole_however_they_are_sent() -> None:
    async def test(connect: Any) -> None:
        client = await connect()
        body = bytes(range(256)) * 4_000
        head = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body)
        assert (await client.ask(head + body))[1] == b"POST /? " + body
        chunks = b"%x\r\n%b\r\n" % (len(body), body) + b"0\r\n\r\n"
        sent = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
        assert (await client.ask(sent))[1] == b"POST /? " + body

    run(test)


def test_answer_before_the_end_of_a_body_leaves_the_connection_usable() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body"})

    async def test(connect: Any) -> None:
        client = await connect()
        head = b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n"
        assert (await client.ask(head + b"x" * 10))[0] == 413
        assert (await client.ask(b"x" * 99_990 + GET % b""))[0] == 413
        expecting = b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
        assert (await client.ask(expecting))[0] == 413
        assert await client.is_closed()  # nobody knows whether the body comes

    run(test, refuse)


def test_browser_that_leaves_cancels_its_answer() -> None:
    ended: list[str] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200})
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(scope["path"])

    async def test(connect: Any) -> None:
        client = await connect()
        client.writer.write(GET % b"stream")
        await client.reader.readuntil(b"\r\n\r\n")
        client.writer.close()
        while not ended:
            await asyncio.sleep(0.01)

    run(test, endless)
    assert ended == ["/stream"]


@pytest.mark.parametrize("starts", [False, True])
def test_fault_of_the_application_ends_the_connection_only(
    starts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/good":
            await echo(scope, receive, send)
        if starts:
            await send({"type": "http.response.start", "status": 200})
        raise ValueError("broken")

    async def test(connect: Any) -> None:
        client = await connect()
        client.writer.write(GET % b"bad")
        with contextlib.suppress(ConnectionResetError):
            text = await client.reader.read()
            assert starts or (b" 500 " in text and b"broken" not in text)

    run(test, broken)
    assert "GET /bad failed" in caplog.text


def test_what_is_no_request_is_refused() -> None:
    async def test(connect: Any) -> None:
        for sent in (b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"):
            client = await connect()
            assert (await client.ask(sent))[0] == 400
            assert await client.is_closed()
        client = await connect()  # an offer that is not taken
        upgrade = b"GET /u HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert await client.ask(upgrade) == (200, b"GET /u? ")
        assert await client.is_closed()

    run(test)


def test_connection_that_sends_no_request_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEADERS_SECONDS_MAX", 0.1)

    async def test(connect: Any) -> None:
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: "):
            client = await connect()
            client.writer.write(sent)
            assert await client.is_closed()
        client = await connect()
        assert (await client.ask(GET % b""))[0] == 200
        client.writer.write(b"GET / HTTP/1.1\r\nHost: ")  # the rest does not come
        assert await client.is_closed()

    run(test)


def test_body_that_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "BODY_SECONDS_MAX", 0.1)

    async def test(connect: Any) -> None:
        client = await connect()
        status, body = await client.ask(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
        assert (status, await client.is_closed()) == (408, True)
        assert b"took more than" in body

    run(test)


def test_headers_are_limited() -> None:
    async def test(connect: Any) -> None:
        client = await connect()
        client.writer.write(b"GET / HTTP/1.1\r\n" + (b"X-Long: " + b"x" * 1000 + b"\r\n") * 5_000)
        with contextlib.suppress(ConnectionResetError):
            assert b" 431 " in await client.reader.read()

    run(test)


def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ACCEPTED_MAX", 2)
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 1)

    async def test(connect: Any) -> None:
        first = await connect()
        assert (await first.ask(GET % b""))[0] == 200
        second = await connect()
        assert (await second.ask(GET % b""))[0] == 503
        third = [await connect() for _ in range(3)]
        assert all([await it.is_closed() for it in third[1:]])

    run(test)


def test_requests_that_do_not_wait_for_answers_are_limited() -> None:
    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    async def test(connect: Any) -> None:
        client = await connect()
        client.writer.write((GET % b"") * 100)
        assert await client.is_closed()

    run(test, slow)
