"""The pages of groups, share groups, transactions and dead letters on Apache Kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import AcknowledgeType
from playwright.sync_api import Page, expect

from millstream.admin.groups import committed_offsets
from tests.conformance.brokers import SETTINGS
from tests.console.conftest import Console, check_accessible, start_console
from tests.console.pages.groups_scene import (
    acknowledge,
    make_group,
    make_letters,
    make_topic,
    open_transaction,
    queue_member,
    reader,
)
from tests.peers.kafka import start_kafka
from tests.peers.patience import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    server = start_kafka(tmp_path_factory.mktemp("kafka"), SETTINGS)
    console = start_console(server.bootstrap)
    yield console
    console.server.stop()
    server.stop()


def test_groups_are_shown_reset_and_deleted(kafka: Console, page: Page) -> None:
    make_topic(kafka, "orders", 8)
    make_group(kafka, "billing", "orders", 5)
    with reader(kafka, "billing", "orders"):
        page.goto(kafka.url + "/groups/billing")
        expect(page.get_by_role("table", name="Members")).to_contain_text("till")
        offsets = page.get_by_role("table", name="Offsets")
        expect(offsets.get_by_role("row", name="orders[0]")).to_contain_text("3")
        check_accessible(page)
    with reader(kafka, "modern", "orders", protocol="consumer"):
        assert kafka.json("/groups/modern")["description"]["type"] == "consumer"
    page.goto(kafka.url + "/groups/billing/reset?target=earliest")
    page.get_by_role("button", name="Reset offsets").click()
    expect(page.get_by_text("1 offsets are reset")).to_be_visible()
    with kafka.cluster() as cluster:
        assert committed_offsets(cluster, "billing") == {("orders", 0): 0}
    [row] = kafka.json("/groups?q=billing")["groups"]["rows"]
    assert (row["lag"], row["members"]) == (8, 0)
    status, answer = kafka.post("/groups/billing/delete", {"confirmation": "billing"})
    assert (status, "is deleted" in answer["message"]) == (200, True)
    assert kafka.get("/groups/billing")[0] == 404


def test_share_group_shows_what_apache_kafka_reports(kafka: Console, page: Page) -> None:
    make_topic(kafka, "jobs", 6)
    with queue_member(kafka, "workers", "jobs", 6) as (member, held):
        acknowledge(member, held[:2], AcknowledgeType.ACCEPT)
        wait_until(lambda: kafka.json("/share-groups/workers")["backlog"] == 4)
        page.goto(kafka.url + "/share-groups/workers")
        expect(page.get_by_text("reports only what is persisted")).to_be_visible()
        expect(page.get_by_role("table", name="Members")).to_contain_text("worker")
        check_accessible(page)
        found = kafka.json("/share-groups/workers")
        assert (found["held"], found["is_live"]) == (None, False)
    wait_until(lambda: not kafka.json("/share-groups/workers")["description"]["members"])
    status, answer = kafka.post("/share-groups/workers/reset", {"target": "earliest"})
    assert (status, "1 partitions" in answer["message"]) == (200, True)
    assert kafka.post("/share-groups/workers/delete", {"confirmation": "workers"})[0] == 200


def test_transaction_is_shown_and_aborted(kafka: Console, page: Page) -> None:
    make_topic(kafka, "accounts", 2)
    with open_transaction(kafka, "settlement", "accounts"):
        page.goto(kafka.url + "/transactions")
        held = page.get_by_role("table", name="Partitions that wait")
        expect(held.get_by_role("row", name="accounts[0]")).to_contain_text("settlement")
        page.goto(kafka.url + "/transactions/settlement")
        page.get_by_role("button", name="Abort").first.click()
        page.get_by_label("to confirm").fill("settlement")
        page.get_by_role("dialog").get_by_role("button", name="Abort").click()
        expect(page.get_by_text("is aborted, and its producer shut out")).to_be_visible()

        def is_free() -> bool:
            found = kafka.json("/transactions")["held"]
            return not [it for it in found if it["topic"] == "accounts"]

        wait_until(is_free)


def test_letters_are_replayed_and_purged(kafka: Console, page: Page) -> None:
    make_topic(kafka, "work", 3)
    make_topic(kafka, "dlq.work")
    make_letters(kafka, "dlq.work", "work", 3)
    page.goto(kafka.url + "/dead-letters/dlq.work")
    page.get_by_label("Select letter 0:1").check()
    page.get_by_role("button", name="Replay selected").click()
    page.get_by_role("button", name="Replay 1").click()
    expect(page.get_by_text("1 letter is replayed.")).to_be_visible()
    every = {"which": "all", "confirmation": "dlq.work"}
    status, answer = kafka.post("/dead-letters/dlq.work/replay", every)
    expected = "2 letters are replayed. 1 had been replayed before."
    assert (status, answer["message"]) == (200, expected)
    assert kafka.json("/dead-letters/dlq.work")["states"] == {"replayed": 3}
    check_accessible(page)
    status, answer = kafka.post("/dead-letters/dlq.work/purge", {"confirmation": "dlq.work"})
    assert (status, answer["message"]) == (200, "3 dead letters of dlq.work are deleted.")
