"""The pages of share groups: what is in flight, and who holds it."""

from __future__ import annotations

from confluent_kafka import AcknowledgeType
from playwright.sync_api import Page, expect

from millstream.admin.settings import Resource, alter_settings
from millstream.admin.share_groups import start_offsets
from tests.console.conftest import Console, check_accessible
from tests.console.pages.groups_scene import acknowledge, make_topic, queue_member
from tests.peers.patience import wait_until


def test_records_in_flight_are_shown_with_who_holds_them(console: Console, page: Page) -> None:
    make_topic(console, "jobs", 10)
    hostile = "<b>worker</b>"
    slow = {"share.retry.backoff.max.ms": "600000", "share.retry.backoff.ms": "600000"}
    with console.cluster() as cluster:
        alter_settings(cluster, Resource.GROUP, "workers", slow)
    with queue_member(console, "workers", "jobs", 10, hostile) as (member, held):
        acknowledge(member, held[:3], AcknowledgeType.ACCEPT)
        acknowledge(member, held[3:5], AcknowledgeType.RELEASE)
        page.goto(console.url + "/share-groups")
        expect(page.get_by_role("row", name="workers")).to_contain_text("7")
        check_accessible(page)
        page.get_by_role("link", name="workers").click()
        flight = page.get_by_role("table", name="Records in flight")
        expect(flight.get_by_role("row", name="jobs[0] 5 – 9")).to_contain_text("held")
        expect(flight.get_by_role("row", name="jobs[0] 5 – 9")).to_contain_text(hostile)
        expect(flight.get_by_role("row", name="jobs[0] 3 – 4")).to_contain_text("delayed")
        expect(page.get_by_role("row", name=hostile).first).to_contain_text("5")
        check_accessible(page)
        found = console.json("/share-groups/workers")
        assert (found["backlog"], found["held"], found["delayed"]) == (7, 5, 2)
        assert found["is_live"]
        assert dict(found["deliveries"]) == {1: 7}
        assert list(found["holders"].values()) == [5]
        status, answer = console.post("/share-groups/workers/delete", {"confirmation": "workers"})
        assert (status, "has members" in answer["message"]) == (400, True)


def test_start_is_reset_with_a_preview_and_the_group_deleted(console: Console, page: Page) -> None:
    make_topic(console, "mail", 6)
    with queue_member(console, "mailers", "mail", 6) as (member, held):
        acknowledge(member, held, AcknowledgeType.ACCEPT)
    with console.cluster() as cluster:
        wait_until(lambda: start_offsets(cluster, "mailers") == {("mail", 0): 6})
        page.goto(console.url + "/share-groups/mailers")
        page.get_by_role("link", name="Reset the start").click()
        page.get_by_label("Go to").select_option("earliest")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("row", name="mail[0]")).to_contain_text("-6 again")
        wait_until(lambda: not console.json("/share-groups/mailers")["description"]["members"])
        page.get_by_role("button", name="Reset the start").click()
        expect(page.get_by_text("starts at its new offsets in 1 partitions")).to_be_visible()
        assert start_offsets(cluster, "mailers") == {("mail", 0): 0}
    page.get_by_role("button", name="Delete").first.click()
    page.get_by_label("to confirm").fill("mailers")
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_text("Share group mailers is deleted")).to_be_visible()
    assert console.get("/share-groups/mailers")[0] == 404


def test_group_without_records_in_flight_says_so(console: Console, page: Page) -> None:
    make_topic(console, "calm", 2)
    with queue_member(console, "calm-group", "calm", 2) as (member, held):
        acknowledge(member, held, AcknowledgeType.ACCEPT)
        wait_until(lambda: console.json("/share-groups/calm-group")["backlog"] == 0)
        page.goto(console.url + "/share-groups/calm-group")
        expect(page.get_by_text("Nothing in flight")).to_be_visible()
