"""Live parts: encoding, shared feeds, and a page that follows its broker."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence

import pytest
from playwright.sync_api import Page, Route, expect
from starlette.exceptions import HTTPException

from millstream import Broker
from millstream.console import live
from millstream.console.exchanges import Chunk
from millstream.console.live import Event, Feed, Partial, Streams, encode
from tests.console.conftest import Console, start_console, wait_until

STREAM = "document.querySelector('[data-live]')._htmx?.sse"  # that a page follows


def test_lines_of_html_are_one_event() -> None:
    content = encode(Partial("rows", "a\r\nb\n\nevent: x\rdata: y"))
    assert content.count(b"\n\n") == 1
    assert content.endswith(b"\n\n")
    for line in content.decode().splitlines():
        assert not line or line.startswith("data: ")
    assert encode(Event("samples", {"a": "\n"})) == b'event: samples\ndata: {"a":"\\n"}\n\n'


class Browser:
    """Keeps what it is offered; `is_behind`: it takes nothing."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self.on_drain: Callable[[], None] | None = None
        self.is_behind = False
        self.news = asyncio.Event()

    def offer(self, chunks: Chunk) -> bool:
        if not self.is_behind:
            self.contents.append(chunks.content)
            self.news.set()
        return not self.is_behind

    @property
    def text(self) -> str:
        return b"".join(self.contents).decode()

    async def see(self, text: str) -> None:
        async with asyncio.timeout(60):
            while text not in self.text:
                await self.news.wait()
                self.news.clear()


def test_browsers_share_a_feed_and_it_ends_with_them() -> None:
    drawn = []

    async def draw(parts: Sequence[str]) -> dict[str, str]:
        drawn.append(list(parts))
        return {part: f"{part}{len(drawn)};" for part in parts}

    def make() -> Feed:
        return Feed({"a": 0.01, "b": 3600.0}, draw, problem=str)

    async def run() -> list[Browser]:
        streams = Streams()
        browsers = [Browser() for _ in range(25)]
        with contextlib.ExitStack() as stack:
            for it in browsers:
                stack.enter_context(streams.shared(("user", "/"), make, it))
            await asyncio.gather(*(it.see("a5;") for it in browsers))
            assert len(streams._feeds) == 1
        assert not streams._feeds
        return browsers

    for browser in asyncio.run(run()):
        assert browser.text.count("#live-b") == 1
        assert browser.contents[0].count(b"data: ") == 3  # a, b and no problem in one piece
    assert drawn[0] == ["a", "b"]
    assert all(parts == ["a"] for parts in drawn[1:])


def test_browser_that_is_behind_skips_versions() -> None:
    number = 0

    async def draw(parts: Sequence[str]) -> dict[str, str]:
        nonlocal number
        number += 1
        return {"a": f"version {number};"}

    async def run() -> str:
        streams, slow, fast = Streams(), Browser(), Browser()
        make = lambda: Feed({"a": 0.01}, draw, problem=str)  # noqa: E731
        with streams.shared(("u", "/"), make, slow), streams.shared(("u", "/"), make, fast):
            await slow.see("version 1;")
            slow.is_behind = True
            await fast.see(f"version {number + 2};")
            slow.is_behind = False
            assert slow.on_drain is not None
            slow.on_drain()
            await slow.see(f"version {number};")
        return slow.text

    assert asyncio.run(run()).count("version") < number


def test_browser_that_fails_does_not_stop_the_others() -> None:
    number = 0

    async def draw(parts: Sequence[str]) -> dict[str, str]:
        nonlocal number
        number += 1
        return {"a": f"version {number};"}

    class Broken(Browser):
        def offer(self, chunks: Chunk) -> bool:
            raise RuntimeError("the transport is closed")

    async def run() -> None:
        streams, broken, other = Streams(), Broken(), Browser()
        make = lambda: Feed({"a": 0.01}, draw, problem=str)  # noqa: E731
        with streams.shared(("u", "/"), make, broken), streams.shared(("u", "/"), make, other):
            await other.see("version 3;")

    asyncio.run(run())


def test_feed_has_events_for_scripts_beside_its_parts() -> None:
    async def draw(parts: Sequence[str]) -> dict[str, str | Event]:
        return {"rows": "<p>", "event samples": Event("samples", [1])}

    async def run() -> None:
        streams, browser = Streams(), Browser()
        make = lambda: Feed({"rows": 0.01}, draw, problem=str)  # noqa: E731
        with streams.shared(("user", "/"), make, browser):
            await browser.see("event: samples\ndata: [1]\n\n")

    asyncio.run(run())


def test_quiet_feed_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "HEARTBEAT_SECONDS", 0.01)

    async def draw(parts: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(parts, "same")

    async def run() -> str:
        streams, browser = Streams(), Browser()
        make = lambda: Feed({"a": 0.01}, draw, problem=str)  # noqa: E731
        with streams.shared(("user", "/"), make, browser):
            await browser.see(": still here")
        return browser.text

    assert asyncio.run(run()).count("same") == 1


def test_page_that_takes_long_is_refreshed_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "SHARE_MAX", 0.001)
    drawn = 0

    async def draw(parts: Sequence[str]) -> dict[str, str]:
        nonlocal drawn
        drawn += 1
        await asyncio.sleep(0.1)
        return {"a": f"version {drawn};"}

    async def run() -> None:
        streams, browser = Streams(), Browser()
        make = lambda: Feed({"a": 0.01}, draw, problem=str)  # noqa: E731
        with streams.shared(("user", "/"), make, browser):
            await browser.see("version 1;")
            await asyncio.sleep(0.5)

    asyncio.run(run())
    assert drawn == 1


def test_feed_shows_problems_and_goes_on() -> None:
    answers: list[str | Exception] = ["one", OSError("gone"), "one", "two"]

    async def draw(parts: Sequence[str]) -> dict[str, str]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict.fromkeys(parts, answer)

    async def run() -> str:
        streams, browser = Streams(), Browser()
        make = lambda: Feed({"a": 0.001}, draw, problem=lambda it: f"problem: {it}")  # noqa: E731
        with streams.shared(("user", "/"), make, browser):
            await browser.see("two")
        return browser.text

    seen = asyncio.run(run())
    assert seen.count(">one<") == 1  # unchanged parts are not sent again
    problems = re.findall('#live-problem"[^>]*>([^<]*)<', seen)
    assert problems == ["", "problem: gone", ""]


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


def test_page_is_live_although_a_script_comes_late(console: Console, page: Page) -> None:
    """htmx must not begin before its extension for streams is there."""

    def late(route: Route) -> None:
        page.wait_for_timeout(500)
        route.continue_()

    page.route("**/hx-sse.min.js*", late)
    with page.expect_request("**/?live=1"):
        page.goto(console.url)


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        (None, "does not answer"),
        pytest.param(503, "too many pages", marks=pytest.mark.slow),
        pytest.param(401, "You are logged out", marks=pytest.mark.slow),
    ],
)
def test_page_becomes_live_although_its_first_connections_fail(
    fault: int | None, shown: str, console: Console, page: Page
) -> None:
    """What is answered instead of a stream takes nothing of the page away."""
    page.expected_errors += ["ERR_FAILED", "503", "401", "htmx:"]  # type: ignore[attr-defined]
    is_failing = True

    def connect(route: Route) -> None:
        if not is_failing:
            route.continue_()
        elif fault is None:
            route.abort()
        else:
            body = "<p class=problem>too many pages</p>"
            route.fulfill(status=fault, content_type="text/html", body=body)

    page.route("**/?live=1", connect)
    page.goto(console.url)
    problem = page.locator("#live-problem")
    expect(problem).to_contain_text(shown)
    with page.expect_request("**/?live=1"):  # again and again
        pass
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    is_failing = False
    expect(problem).to_be_empty()
    wait_until(page, lambda: page.evaluate(f"{STREAM}?.status === 200"))


def test_page_shows_that_the_console_is_gone(page: Page) -> None:
    with Broker.start() as broker:
        console = start_console(broker.bootstrap_servers)
        try:
            page.goto(console.url)
            wait_until(page, lambda: page.evaluate(f"Boolean({STREAM})"))
            page.expected_errors += ["ERR_", "sse:error"]  # type: ignore[attr-defined]
        finally:
            console.server.stop()
        expect(page.locator("#live-problem")).to_contain_text("does not answer")


def test_streams_of_one_session_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "OWN_PER_SESSION_MAX", 1)

    async def run() -> None:
        streams = Streams()
        with streams.counted("a", is_own=True):
            streams.check("b", is_own=True)
            streams.check("a", is_own=False)
            with pytest.raises(HTTPException, match="1 such pages"):
                streams.check("a", is_own=True)
        streams.check("a", is_own=True)

    asyncio.run(run())
