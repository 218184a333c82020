"""Live parts: encoding, shared feeds, and a page that follows its broker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import pytest
from playwright.sync_api import Page, expect
from starlette.exceptions import HTTPException

from millstream import Broker
from millstream.console import live
from millstream.console.live import Event, Feed, Partial, Streams, encode
from tests.console.conftest import start_console


def test_lines_of_html_are_one_event() -> None:
    content = encode(Partial("rows", "a\r\nb\n\nevent: x\rdata: y"))
    assert content.count(b"\n\n") == 1
    assert content.endswith(b"\n\n")
    for line in content.decode().splitlines():
        assert not line or line.startswith("data: ")
    assert encode(Event("samples", {"a": "\n"})) == b'event: samples\ndata: {"a":"\\n"}\n\n'


def test_browsers_share_a_feed_and_it_ends_with_them() -> None:
    drawn = []

    async def draw(parts: Sequence[str]) -> dict[str, str]:
        drawn.append(list(parts))
        return {part: f"{part}{len(drawn)}" for part in parts}

    def make() -> Feed:
        return Feed({"a": 0.01, "b": 3600.0}, draw, problem=str)

    async def read(stream: AsyncIterator[bytes], count: int) -> list[bytes]:
        return [content async for _, content in _numbered(stream, count)]

    async def run() -> tuple[list[list[bytes]], int, int]:
        streams = Streams()
        opened = [streams.shared(("user", "/"), make) for _ in range(3)]
        both = await asyncio.gather(*(read(it, 6) for it in opened))
        during = len(streams._feeds)
        for it in opened:
            await it.aclose()  # type: ignore[attr-defined]
        return list(both), during, len(streams._feeds)

    read_by_all, during, after = asyncio.run(run())
    assert (during, after) == (1, 0)
    assert drawn[0] == ["a", "b"]
    assert all(parts == ["a"] for parts in drawn[1:])
    for contents in read_by_all:
        assert sum(b"#live-b" in it for it in contents) == 1
    assert len(drawn) < 3 * 6


def test_feed_has_events_for_scripts_beside_its_parts() -> None:
    async def draw(parts: Sequence[str]) -> dict[str, str | Event]:
        return {"rows": "<p>", "event samples": Event("samples", [1])}

    async def run() -> list[bytes]:
        streams = Streams()
        stream = streams.shared(("user", "/"), lambda: Feed({"rows": 0.01}, draw, problem=str))
        found = [content async for _, content in _numbered(stream, 3)]
        await stream.aclose()  # type: ignore[attr-defined]
        return found

    assert b"event: samples\ndata: [1]\n\n" in asyncio.run(run())


async def _numbered(stream: AsyncIterator[bytes], count: int) -> AsyncIterator[tuple[int, bytes]]:
    for number in range(count):
        yield number, await anext(stream)


def test_feed_shows_problems_and_goes_on() -> None:
    answers: list[str | Exception] = ["one", OSError("gone"), "one", "two"]

    async def draw(parts: Sequence[str]) -> dict[str, str]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(parts, answer)

    async def run() -> list[str]:
        feed = Feed({"a": 0.001}, draw, problem=lambda error: f"problem: {error}")
        task = asyncio.create_task(feed.run())
        seen: list[str] = []
        async for content in feed.follow():
            seen.append(content.decode())
            if "two" in seen[-1]:
                break
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return seen

    seen = asyncio.run(run())
    shown = [it for it in seen if "live-a" in it]
    assert len([it for it in shown if "one" in it]) == 1  # unchanged parts are not sent again
    assert any("live-problem" in it and ">problem: gone<" in it for it in seen)
    problems = [it for it in seen if "live-problem" in it]
    assert "gone" not in problems[-1]


def test_page_follows_a_broker_that_stops_and_comes_back(page: Page) -> None:
    with Broker.start() as broker:
        console = start_console(broker.bootstrap_servers)
        try:
            page.goto(console.url)
            expect(page.locator("#live-problem")).to_be_empty()
            broker._end(lambda runner: runner.stop())
            expect(page.locator("#live-problem")).to_contain_text("cannot be reached")
            broker.restart()
            expect(page.locator("#live-problem")).to_be_empty()
        finally:
            console.server.stop()


def test_page_shows_that_the_console_is_gone(page: Page) -> None:
    with Broker.start() as broker:
        console = start_console(broker.bootstrap_servers)
        page.goto(console.url)
        page.wait_for_function("document.querySelector('[data-live]')._htmx?.sse")
        page.expected_errors += ["ERR_", "sse:error"]  # type: ignore[attr-defined]
        console.server.stop()
        expect(page.locator("#live-problem")).to_contain_text("does not answer")


def test_streams_of_one_session_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "OWN_PER_SESSION_MAX", 1)

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x"

    async def run() -> None:
        streams = Streams()
        stream = streams.counted(endless(), "a", is_own=True)
        await anext(stream)
        streams.check("b", is_own=True)
        streams.check("a", is_own=False)
        with pytest.raises(HTTPException, match="1 such pages"):
            streams.check("a", is_own=True)
        await stream.aclose()  # type: ignore[attr-defined]
        streams.check("a", is_own=True)

    asyncio.run(run())
