"""The HTTP endpoint: pages, tokens, compression; no request harms another."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import gzip
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import pytest

from millstream.errors import MillstreamError
from millstream.metrics import endpoint as module
from millstream.metrics.endpoint import Endpoint, GetPage, Page, text_page

LONG = "a line of text\n" * 1000


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


async def long_page() -> Page:
    return await text_page(LONG)


async def broken_page() -> Page:
    raise RuntimeError("a defect")


@asynccontextmanager
async def listening(
    token: str | None = None, pages: Mapping[str, GetPage] | None = None
) -> AsyncIterator[Endpoint]:
    served: dict[str, GetPage] = {
        "/long": long_page,
        "/broken": broken_page,
        "/probe": lambda: text_page("no\n", HTTPStatus.SERVICE_UNAVAILABLE),
        **(pages or {}),
    }
    endpoint = Endpoint(served, token=token, public=frozenset({"/probe"}))
    await endpoint.listen("127.0.0.1", 0)
    try:
        yield endpoint
    finally:
        await endpoint.close()


async def send(endpoint: Endpoint, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """The status, the headers and the body of the response."""
    async with asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*endpoint.address)
        writer.write(request)
        response = await reader.read()
        writer.close()
    head, _, body = response.partition(b"\r\n\r\n")
    if not head:
        return 0, {}, b""
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split(" ")[1]), headers, body


def get(path: str, **headers: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", "Host: x"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@in_loop
async def test_a_page_is_served_plain_or_compressed() -> None:
    async with listening() as endpoint:
        status, headers, body = await send(endpoint, get("/long?format=x"))
        assert (status, body.decode()) == (200, LONG)
        assert headers["content-length"] == str(len(LONG))
        status, headers, body = await send(endpoint, get("/long", Accept_Encoding="br, gzip"))
        assert headers["content-encoding"] == "gzip"
        assert gzip.decompress(body).decode() == LONG
        _, headers, body = await send(endpoint, get("/long", Accept_Encoding="gzip;q=0"))
        assert "content-encoding" not in headers
        status, headers, body = await send(endpoint, b"HEAD /long HTTP/1.1\r\n\r\n")
        assert (status, headers["content-length"], body) == (200, str(len(LONG)), b"")
        assert (await send(endpoint, get("/probe")))[0] == 503


@in_loop
async def test_without_its_token_a_page_is_refused_and_a_public_one_is_not() -> None:
    async with listening(token="hunter2") as endpoint:
        basic = base64.b64encode(b"prometheus:hunter2").decode()
        wrong = base64.b64encode(b"hunter2:").decode()
        allowed = ("Bearer hunter2", "bearer  hunter2", f"Basic {basic}")
        refused = ("", "hunter2", "Bearer hunter", "Bearer", f"Basic {wrong}", "Basic !!!")
        for sent in allowed:
            assert (await send(endpoint, get("/long", Authorization=sent)))[0] == 200, sent
        for sent in refused:
            status, _, body = await send(endpoint, get("/long", Authorization=sent))
            assert (status, b"hunter2" in body) == (401, False), sent
        assert (await send(endpoint, get("/probe")))[0] == 503
        assert (await send(endpoint, get("/nothing")))[0] == 404


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"\x00\x01\x02\r\n\r\n", 400),
        (b"GET /long\r\n\r\n", 400),
        (b"GET /long HTTP/2\r\n\r\n", 400),
        (b"GET /long HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"POST /long HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"GET /" + b"x" * 40_000, 431),
        (get("/elsewhere"), 404),
    ],
)
@in_loop
async def test_a_bad_request_gets_its_status(request_bytes: bytes, status: int) -> None:
    async with listening() as endpoint:
        assert (await send(endpoint, request_bytes))[0] == status


@in_loop
async def test_any_bytes_are_survived() -> None:
    chosen = random.Random(714)
    async with listening() as endpoint:
        for _ in range(100):
            noise = chosen.randbytes(chosen.randrange(1, 300))
            assert (await send(endpoint, noise + b"\r\n\r\n"))[0] in (0, 400)
        assert (await send(endpoint, get("/long")))[0] == 200


@in_loop
async def test_a_defect_closes_only_its_connection() -> None:
    async with listening() as endpoint:
        assert (await send(endpoint, get("/broken")))[0] == 0
        assert (await send(endpoint, get("/long")))[0] == 200


@in_loop
async def test_a_client_that_sends_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_SECONDS", 0.2)
    async with listening() as endpoint:
        assert (await send(endpoint, b"GET /long HTT"))[0] == 0


@in_loop
async def test_idle_connections_make_way_for_requests() -> None:
    async with listening() as endpoint:
        held = [
            await asyncio.open_connection(*endpoint.address) for _ in range(module.CONNECTIONS_MAX)
        ]
        while len(endpoint._connections) < module.CONNECTIONS_MAX:
            await asyncio.sleep(0.01)
        assert (await send(endpoint, get("/probe")))[0] == 503
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):  # the oldest was closed
                assert await held[0][0].read() == b""
        assert (await send(endpoint, get("/long")))[0] == 200
        for _, writer in held:
            writer.close()
        while endpoint._connections:
            await asyncio.sleep(0.01)
        assert not endpoint._sending_head


@in_loop
async def test_pages_that_take_long_leave_places_for_the_public_ones() -> None:
    released = asyncio.Event()

    async def slow_page() -> Page:
        await released.wait()
        return await text_page("slow")

    async with listening(pages={"/slow": slow_page}) as endpoint:
        requests = [asyncio.create_task(send(endpoint, get("/slow"))) for _ in range(12)]
        most = module.PRIVATE_PAGES_MAX
        while sum(it.done() for it in requests) < len(requests) - most:
            await asyncio.sleep(0.01)
        assert (await send(endpoint, get("/probe")))[2] == b"no\n"
        released.set()
        statuses = [status for status, _, _ in await asyncio.gather(*requests)]
        assert (statuses.count(200), statuses.count(503)) == (most, len(requests) - most)
        assert (await send(endpoint, get("/slow")))[0] == 200


@in_loop
async def test_a_token_may_have_any_characters() -> None:
    async with listening(token="schlüssel") as endpoint:
        assert (await send(endpoint, get("/long", Authorization="Bearer schlüssel")))[0] == 200
        basic = base64.b64encode("x:schlüssel".encode()).decode()
        assert (await send(endpoint, get("/long", Authorization=f"Basic {basic}")))[0] == 200


@in_loop
async def test_an_address_that_is_taken_is_named() -> None:
    async with listening() as endpoint:
        host, port = endpoint.address
        with pytest.raises(MillstreamError, match=rf"cannot listen on {host}:{port} \(metrics\)"):
            await Endpoint({}).listen(host, port)
