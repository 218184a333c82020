"""The list of topics in a browser: searching, sorting, paging, creating."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from millstream.admin.topics import create_topic
from millstream.console.actions import Refused
from millstream.console.pages.topics import parse_settings
from tests.console.conftest import Console, check_accessible
from tests.console.records import commit, produce


def test_topics_show_sizes_rates_and_lag(console: Console, page: Page) -> None:
    servers = console.bootstrap_servers
    with console.cluster() as cluster:
        create_topic(cluster, "list-a", partitions=3, settings={"retention.ms": "7200000"})
        create_topic(cluster, "list-b", partitions=1, settings={"cleanup.policy": "compact"})
    produce(servers, "list-a", 12)
    commit(servers, "list-group", "list-a", 5)
    page.goto(f"{console.url}/topics?q=list-")
    row = page.get_by_role("row").filter(has_text="list-a")
    expect(row).to_contain_text("2 h")
    expect(row.get_by_role("cell").nth(2)).to_have_text("12")
    expect(row.get_by_role("cell").nth(5)).to_have_text("7")
    expect(page.get_by_role("row").filter(has_text="list-b")).to_contain_text("compacted")
    check_accessible(page)
    (found,) = console.json("/topics?q=list-a")["topics"]["rows"]
    assert (found["records"], found["lag"], found["groups"], found["partitions"]) == (12, 7, 1, 3)


def test_topics_are_searched_sorted_and_paged_on_the_server(console: Console, page: Page) -> None:
    with console.cluster() as cluster:
        for number in range(7):
            create_topic(cluster, f"many-{number}", partitions=number + 1)
    page.goto(f"{console.url}/topics?q=many&size=3")
    expect(page.get_by_role("row")).to_have_count(4)
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("many-3")
    page.get_by_role("link", name="Partitions").click()
    expect(page.get_by_role("row").nth(1)).to_contain_text("many-6")
    page.get_by_label("Search topics").fill("MANY-2")
    page.keyboard.press("Enter")
    expect(page.get_by_role("row")).to_have_count(2)
    page.goto(f"{console.url}/topics?q=nothing-like-it")
    expect(page.get_by_text("No topic matches")).to_be_visible()


def test_internal_topics_are_shown_on_request(console: Console, page: Page) -> None:
    with console.cluster() as cluster:
        create_topic(cluster, "list-any")
    commit(console.bootstrap_servers, "any", "list-any", 0)
    page.goto(f"{console.url}/topics")
    expect(page.get_by_role("link", name="__consumer_offsets")).to_have_count(0)
    page.get_by_role("link", name="Internal", exact=False).first.click()
    expect(page.get_by_role("link", name="__consumer_offsets")).to_be_visible()


def test_topic_is_created_in_the_browser(console: Console, page: Page) -> None:
    page.goto(f"{console.url}/topics")
    page.get_by_role("button", name="Create topic").click()
    dialog = page.get_by_role("dialog", name="Create topic")
    check_accessible(page)
    dialog.locator("[name=name]").fill("made.here")
    dialog.get_by_label("Partitions").fill("4")
    dialog.get_by_label("Settings").fill("retention.ms=60000\n\ncleanup.policy=delete")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="made.here")).to_be_visible()
    flash = page.get_by_role("status")
    expect(flash).to_contain_text("Topic made.here is created.")
    expect(flash.locator("code")).to_have_text(
        "millstream topic create made.here --partitions 4 --config retention.ms=60000 "
        f"--config cleanup.policy=delete --bootstrap-server {console.bootstrap_servers}"
    )
    (row,) = console.json("/topics?q=made.here")["topics"]["rows"]
    assert (row["partitions"], row["retention_ms"]) in ((4, 60000), (4, None))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "the name is missing"),
        ({"name": "<script>alert(1)</script>"}, "cannot create topic"),
        ({"name": "x", "partitions": "0"}, "at least 1"),
        ({"name": "x", "partitions": "many"}, "must be a whole number"),
        ({"name": "x", "replication_factor": "9"}, "cannot create topic"),
        ({"name": "x", "settings": "no-equals"}, "write it as name=value"),
        ({"name": "x", "settings": "no.such.setting=1"}, "no.such.setting"),
        ({"name": "x", "settings": "retention.ms=soon"}, "retention.ms"),
    ],
)
def test_bad_topics_are_refused_and_named(
    console: Console, fields: dict[str, str], message: str
) -> None:
    status, answer = console.post("/topics", fields)
    assert status == 400, answer
    assert message in answer["message"]
    assert "x" not in [it["name"] for it in console.json("/topics")["topics"]["rows"]]


def test_error_is_shown_in_the_dialog_and_keeps_what_was_typed(
    console: Console, page: Page
) -> None:
    page.expected_errors.append("400")  # type: ignore[attr-defined]
    page.goto(f"{console.url}/topics")
    page.get_by_role("button", name="Create topic").click()
    dialog = page.get_by_role("dialog", name="Create topic")
    dialog.locator("[name=name]").fill('<img src=x onerror="alert(1)">')
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("cannot create topic <img")
    expect(dialog.locator("[name=name]")).to_have_value('<img src=x onerror="alert(1)">')
    expect(page.locator("dialog img")).to_have_count(0)


def test_settings_are_lines() -> None:
    assert parse_settings(" a = 1 \n\nb=x=y") == {"a": "1", "b": "x=y"}
    with pytest.raises(Refused, match="'oops'"):
        parse_settings("a=1\noops")
