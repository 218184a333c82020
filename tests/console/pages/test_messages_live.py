"""The live tail, in a browser."""

from __future__ import annotations

import time

from playwright.sync_api import Page, expect

from millstream.admin.outgoing import Outgoing, send
from tests.console.conftest import WAIT_MS, Console, check_accessible, wait_until
from tests.console.pages.records import hostile, make_topic


def produce(console: Console, topic: str, *values: bytes) -> None:
    with console.cluster() as cluster:
        send(cluster, topic, [Outgoing(it, partition=0) for it in values], now_ms=1)


def test_tail_shows_new_records_pauses_and_continues(console: Console, page: Page) -> None:
    make_topic(console, "tail", [Outgoing(b"old", partition=0)])
    page.emulate_media(reduced_motion="reduce")  # axe would see rows in mid-animation
    with page.expect_response("**/live/records*"):
        page.goto(f"{console.url}/topics/tail/messages/live")
    # What is written before the stream has found the end would count as old.
    produce(console, "tail", b"first")
    rows = page.locator("tr.record")
    deadline = time.monotonic() + WAIT_MS / 1000
    while not rows.count():
        assert time.monotonic() < deadline
        produce(console, "tail", b"again")
        page.wait_for_timeout(500)
    expect(rows.filter(has_text="old")).to_have_count(0)
    check_accessible(page)
    page.get_by_role("button", name="Pause").click()
    produce(console, "tail", b"while paused")
    page.get_by_role("button", name="Continue").click()
    expect(rows.filter(has_text="while paused")).to_have_count(1)
    rows.first.get_by_role("button").click()
    expect(page.locator("tr.details")).to_contain_text("while paused")
    page.get_by_role("button", name="Clear").click()
    expect(rows).to_have_count(0)


def test_tail_in_the_background_reads_nothing(console: Console, page: Page) -> None:
    make_topic(console, "behind", [Outgoing(b"old", partition=0)])
    streams = console.server._app.state.streams
    with page.expect_request("**/live/records*") as asked:
        page.goto(f"{console.url}/topics/behind/messages/live?at=0:1")
    assert asked.value.url.endswith("?at=0%3A1")  # not where the topic ends by then
    wait_until(page, lambda: streams.count == 1)
    turn = """(hidden) => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(turn, True)
    wait_until(page, lambda: streams.count == 0)
    produce(console, "behind", b"unseen so far")
    page.evaluate(turn, False)
    expect(page.locator("tr.record").filter(has_text="unseen so far")).to_have_count(1)


def test_tail_counts_what_it_cannot_show_and_stays_text(console: Console, page: Page) -> None:
    make_topic(console, "fast", [Outgoing(b"old", partition=0)])
    page.goto(f"{console.url}/topics/fast/messages/live?at=0:1")
    expect(page.get_by_text("Waiting for records")).to_be_visible()
    with console.cluster() as cluster:
        send(cluster, "fast", [Outgoing(b"%d" % n, partition=0) for n in range(200)], now_ms=1)
        send(cluster, "fast", hostile(), now_ms=1)
    expect(page.get_by_text("more came in between")).to_be_visible()
    expect(page.locator("tr.record").filter(has_text="<script>")).not_to_have_count(0)
    assert page.locator("main script, main img").count() == 0


def test_tail_of_what_is_not_there_says_so(console: Console, page: Page) -> None:
    assert console.get("/topics/gone/messages/live")[0] == 404
    make_topic(console, "tail-json", [])
    assert console.json("/topics/tail-json/messages/live")["partitions"] == 1
    assert console.get("/topics/tail-json/messages/live/records?partition=x")[0] == 400
    page.goto(f"{console.url}/topics/tail-json/messages/live?partition=9")
    expect(page.locator(".problem")).to_contain_text("has no partition 9")
