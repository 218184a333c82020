"""The overview in a browser: what is there, what needs attention, and that it changes by itself."""

from __future__ import annotations

import time

import pytest
from playwright.sync_api import Page, expect

from millstream import Broker
from millstream.admin.topics import create_topic
from tests.console.conftest import DESKTOP, Console, check_accessible, start_console
from tests.console.records import commit, produce

HOUR_MS = 3_600_000


def leave(page: Page, console: Console) -> None:
    """Stop a console; its page would report that it cannot be reached."""
    page.goto("about:blank")
    console.server.stop()


def stat(page: Page, label: str) -> str:
    """The number with this label."""
    return page.locator(".stat", has_text=label).first.locator("dd").inner_text()


def test_overview_shows_what_the_cluster_does(console: Console, page: Page) -> None:
    servers = console.bootstrap_servers
    with console.cluster() as cluster:
        create_topic(cluster, "ov-orders", partitions=3, settings={"retention.ms": str(HOUR_MS)})
        create_topic(cluster, "dlq.ov", partitions=1)
    old_ms = round(time.time() * 1000) - HOUR_MS * 9 // 10
    produce(servers, "ov-orders", 7, timestamp_ms=old_ms)
    produce(servers, "dlq.ov", 2)
    commit(servers, "ov-slow", "ov-orders", 0)
    page.goto(console.url)
    expect(page.get_by_role("table", name="Disks")).to_be_visible()
    expect(page.get_by_role("table", name="Groups that lag most")).to_contain_text("ov-slow")
    expect(page.get_by_role("table", name="Dead letters")).to_contain_text("dlq.ov")
    expect(page.locator("#chart-records canvas")).to_be_visible()
    assert stat(page, "Offline").startswith("0")
    check_accessible(page)


def test_overview_changes_by_itself(console: Console, page: Page) -> None:
    with console.cluster() as cluster:
        create_topic(cluster, "ov-live", partitions=1)
    page.goto(console.url)
    expect(page.locator("main[data-live]")).to_be_visible()
    produce(console.bootstrap_servers, "ov-live", 1)
    # It was loaded before these records were written; the busiest topics come with the stream.
    busy = page.get_by_role("table", name="Busiest topics")
    deadline = time.monotonic() + 180
    while not (busy.count() and "ov-live" in busy.inner_text()):
        assert time.monotonic() < deadline, "the topic is not among the busiest"
        produce(console.bootstrap_servers, "ov-live", 200)
        page.wait_for_timeout(200)
    expect(page.locator("#chart-records .reading")).to_contain_text("/s")


@pytest.mark.slow
def test_unread_records_that_expire_are_shown(console: Console, page: Page) -> None:
    with console.cluster() as cluster:
        create_topic(cluster, "ov-old", partitions=1, settings={"retention.ms": str(HOUR_MS)})
    old_ms = round(time.time() * 1000) - HOUR_MS * 9 // 10
    produce(console.bootstrap_servers, "ov-old", 5, timestamp_ms=old_ms)
    commit(console.bootstrap_servers, "ov-late", "ov-old", 1)
    fresh = start_console(console.bootstrap_servers)
    try:
        page.goto(fresh.url)
        table = page.get_by_role("table", name="Unread records that retention deletes")
        expect(table).to_contain_text("ov-late")
        found = fresh.json("/")
        (risk,) = [it for it in found["at_risk"] if it["group"] == "ov-late"]
        assert (risk["topics"], risk["unread"]) == (["ov-old"], 4)
        assert 0 < risk["expires_in_ms"] <= HOUR_MS // 10
    finally:
        leave(page, fresh)


def test_history_answers_each_chart(console: Console) -> None:
    for chart in ("records", "bytes", "size", "lag"):
        data = console.json(f"/history?chart={chart}&range=6h")
        assert set(data) == {"times", "series"}
    assert console.json("/history?chart=lag&group=any")["series"][0]["label"] == "unread records"
    status, _, body = console.get("/history?chart=nonsense", Accept="application/json")
    assert (status, "there is no chart" in body) == (404, True)


def test_chart_of_one_sample_shows_its_time(console: Console, page: Page) -> None:
    page.goto(console.url)
    expect(page.locator("#chart-records canvas")).to_be_visible()
    span = "(args) => console_ui.span(...args)"
    assert page.evaluate(span, [[5000], 5000, 91_400]) == [4970, 5000]  # uPlot gives it a day
    assert page.evaluate(span, [[4990, 5000], 4990, 5000]) == [4970, 5000]
    assert page.evaluate(span, [[1000, 5000], 1000, 5000]) == [1000, 5000]
    assert page.evaluate(span, [[], 0, 100]) == [70, 100]


def test_chart_wider_than_the_window_does_not_widen_the_page(console: Console, page: Page) -> None:
    page.goto(console.url)
    expect(page.locator("#chart-records canvas")).to_be_visible()
    # A chart is redrawn a frame after the window has become narrower.
    page.evaluate(
        "() => { document.querySelector('#chart-records .uplot').style.width = '3000px' }"
    )
    assert page.evaluate("() => document.documentElement.scrollWidth") <= DESKTOP["width"]


def test_empty_cluster_says_so(page: Page) -> None:
    with Broker.start() as broker:
        fresh = start_console(broker.bootstrap_servers)
        try:
            page.goto(fresh.url)
            expect(page.get_by_text("This cluster has no topics yet")).to_be_visible()
        finally:
            leave(page, fresh)


@pytest.mark.slow
def test_cluster_that_is_gone_is_an_error_with_its_address(page: Page) -> None:
    broker = Broker.start(in_process=False)
    servers = broker.bootstrap_servers
    fresh = start_console(servers)
    try:
        page.goto(fresh.url)
        broker.kill()
        # The page stays, and says why nothing changes.
        expect(page.locator("#live-problem")).to_contain_text("cannot be reached")
        page.expected_errors.append("503")  # type: ignore[attr-defined]
        page.goto(fresh.url)
        expect(page.get_by_role("heading", level=1)).to_contain_text("cannot be reached")
        expect(page.locator("main")).to_contain_text(servers)
        check_accessible(page)
        broker.restart()
        page.goto(fresh.url)
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    finally:
        leave(page, fresh)
        broker.stop()
