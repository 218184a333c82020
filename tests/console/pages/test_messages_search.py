"""Search over a topic's history, in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import psutil
import pytest
from playwright.sync_api import Locator, Page, expect
from starlette.exceptions import HTTPException

from millstream.console.pages import messages_search
from millstream.console.pages.messages_search import Searches
from millstream.console.threads import in_thread
from millstream.query.search import CHILD_MODULE, Search
from tests.console.conftest import Console, check_accessible
from tests.console.pages.records import NOW_MS, hostile, make_topic, orders
from tests.peers.patience import PATIENCE_SECONDS, wait_until

pytest.importorskip("duckdb")

# The process of a search has a low priority, and waits for all others of a busy machine.
LONG_MS = 180_000


@pytest.fixture(scope="module", autouse=True)
def topics(console: Console) -> Iterator[None]:
    make_topic(console, "orders", orders(300, 2), 2)
    make_topic(console, "hostile", hostile())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages_search, "JSON_SECONDS_MAX", LONG_MS / 1000)
        yield


def progress(page: Page) -> Locator:
    return page.locator("[data-progress-text]")


def test_search_by_text_shows_hits_and_progress(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics/orders/messages/search")
    expect(page.get_by_text("Search the whole history")).to_be_visible()
    page.get_by_label("Text in key, value or headers").fill('"order": 29')
    page.get_by_role("button", name="Search").click()
    expect(progress(page)).to_contain_text("Finished. 11 hits.", timeout=LONG_MS)
    rows = page.locator("tr.record")
    expect(rows).to_have_count(11)
    expect(rows.first).to_contain_text('"order": 299')
    expect(progress(page)).to_contain_text("300 of 300 offsets", timeout=LONG_MS)
    expect(page.get_by_text("millstream query")).to_be_visible()
    check_accessible(page)
    rows.first.get_by_role("button").click()
    expect(page.locator("tr.details .key").first).to_have_text('"order"')


@pytest.mark.slow
def test_search_stops_at_its_limit_and_continues(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics/orders/messages/search?q=user&limit=10&order=oldest")
    expect(progress(page)).to_contain_text("Enough found. 10 hits.", timeout=LONG_MS)
    page.get_by_role("button", name="Continue").click()
    expect(progress(page)).to_contain_text("Enough found. 20 hits.", timeout=LONG_MS)
    offsets = page.locator("tr.record td:nth-child(4)").all_inner_texts()
    places = page.locator("tr.record td:nth-child(3)").all_inner_texts()
    assert len({*zip(places, offsets, strict=True)}) == 20


@pytest.mark.slow
def test_search_by_sql_and_header_and_time(console: Console) -> None:
    path = "/topics/orders/messages/search"
    found = console.json(f"{path}?kind=sql&q=_offset+%3E%3D+148")
    assert [it["offset"] for it in found["records"]] == [149, 149, 148, 148]
    assert found["reason"] == "end"
    found = console.json(f"{path}?kind=header&header=trace-id&q=t-17")
    assert [it["headers"] for it in found["records"]] == [["trace-id: t-17"]]
    found = console.json(f"{path}?q=user&since={NOW_MS + 290}&until={NOW_MS + 295}&partition=0")
    assert len(found["records"]) == 3
    assert found["progress"]["total"] == 3


def test_search_continues_from_a_cursor(console: Console) -> None:
    path = "/topics/orders/messages/search?q=user&limit=200&order=oldest"
    first = console.json(path)
    assert (first["reason"], len(first["records"])) == ("limit", 200)
    rest = console.json(f"{path}&cursor={first['progress']['cursor']}")
    assert (rest["reason"], len(rest["records"])) == ("end", 100)
    places = {(it["partition"], it["offset"]) for it in first["records"] + rest["records"]}
    assert len(places) == 300


def test_search_that_is_wrong_says_why(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics/orders/messages/search?kind=sql&q=nonsense+%3E")
    expect(page.locator(".problem")).to_contain_text("Error", timeout=LONG_MS)
    assert console.get("/topics/gone/messages/search")[0] == 404
    status, _, body = console.get(
        "/topics/orders/messages/search?q=x&cursor=nonsense", Accept="application/json"
    )
    assert (status, "range of offsets" in body) == (400, True)


def test_search_finds_hostile_records_as_text(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics/hostile/messages/search?q=%3Cscript%3E")
    expect(progress(page)).to_contain_text("Finished. 2 hits.", timeout=LONG_MS)
    assert page.locator("main script, main img").count() == 0


def test_search_that_finds_nothing_says_so(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics/orders/messages/search?q=nothing-has-this")
    expect(page.get_by_text("Nothing found")).to_be_visible(timeout=LONG_MS)
    expect(page.get_by_role("button", name="Continue")).to_be_hidden()


def children() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if CHILD_MODULE in " ".join(child.cmdline()) and child.status() != "zombie":
                found.append(child)
    return found


ENDLESS = "(select count(*) from range(1000000000000) as t(n) where n % 7 = 3) > _offset"
ENDLESS_QUERY = urlencode({"kind": "sql", "q": ENDLESS})


def test_search_is_cancelled_and_its_process_ends(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics/orders/messages/search?{ENDLESS_QUERY}")
    wait_until(lambda: len(children()) == 1)
    page.get_by_role("button", name="Cancel").click()
    expect(progress(page)).to_contain_text("Cancelled. 0 hits.", timeout=LONG_MS)
    wait_until(lambda: not children())
    page.reload()
    wait_until(lambda: len(children()) == 1)
    page.goto(f"{console.url}/topics/orders/messages")  # whoever leaves the page cancels, too
    wait_until(lambda: not children())


def test_process_of_a_search_ends_when_the_page_is_left_while_it_starts(
    console: Console, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, is_left = Search._write, threading.Event()

    def write_later(search: Search, line: bytes) -> None:
        assert is_left.wait(PATIENCE_SECONDS)
        write(search, line)

    async def in_thread_watched(*arguments: Any, **options: Any) -> Any:
        running = asyncio.create_task(in_thread(*arguments, **options))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            running.cancel()
            is_left.set()
            await asyncio.wait([running])
            raise

    monkeypatch.setattr(Search, "_write", write_later)
    monkeypatch.setattr(messages_search, "in_thread", in_thread_watched)
    page.goto(f"{console.url}/topics/orders/messages/search?{ENDLESS_QUERY}")
    wait_until(lambda: len(children()) == 1)
    page.goto(f"{console.url}/topics/orders/messages")
    wait_until(lambda: not children())


def test_searches_at_once_are_limited() -> None:
    searches = Searches()
    searches.begin("a")
    searches.begin("a")
    with pytest.raises(HTTPException, match="cancel one"):
        searches.begin("a")
    searches.begin("b")
    searches.begin("b")
    with pytest.raises(HTTPException, match="cancel one"):
        searches.begin("c")
    searches.end("a")
    searches.begin("c")
    for session in ("a", "b", "b", "c"):
        searches.end(session)
    assert searches.running == {}
