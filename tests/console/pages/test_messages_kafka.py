"""The pages of messages on Apache Kafka: everything that they do on Millstream."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from millstream.admin.outgoing import Outgoing, send
from tests.conformance.brokers import SETTINGS
from tests.console.conftest import Console, start_console
from tests.console.pages.records import make_topic, orders
from tests.peers.kafka import start_kafka
from tests.peers.transactional import TransactionalProducer

# Retention deletes older records at once.
NOW_MS = int(time.time() * 1000) - 60_000
pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    server = start_kafka(tmp_path_factory.mktemp("kafka"), SETTINGS)
    console = start_console(server.bootstrap)
    try:
        make_topic(console, "orders", orders(120, 3, NOW_MS), 3)
        yield console
    finally:
        console.server.stop()
        server.stop()


def test_records_are_browsed(kafka: Console, page: Page) -> None:
    page.goto(f"{kafka.url}/topics/orders/messages")
    rows = page.locator("tr.record")
    expect(rows.first).to_contain_text('"order": 119')
    page.get_by_role("link", name="Older").click()
    expect(rows.first).to_contain_text('"order": 69')
    rows.first.get_by_role("button").click()
    expect(page.locator("tr.details .key").first).to_have_text('"order"')
    page.goto(f"{kafka.url}/topics/orders/messages/1/3")
    expect(page.get_by_role("heading", name="Offset 3")).to_be_visible()


def test_newest_records_of_many_partitions_are_found(kafka: Console) -> None:
    records = [Outgoing(b"%d" % n, partition=n, timestamp_ms=NOW_MS + n) for n in range(100)]
    make_topic(kafka, "wide", records, 100)
    found = kafka.json("/topics/wide/messages?count=10")
    assert [it["value"]["text"] for it in found["lines"]] == [str(n) for n in range(99, 89, -1)]


def test_transactions_are_marked(kafka: Console) -> None:
    make_topic(kafka, "transfers", [])
    servers = kafka.bootstrap_servers
    with (
        TransactionalProducer(servers, "one", protocol=1) as one,
        TransactionalProducer(servers, "two", protocol=1) as two,
    ):
        assert one.init() == two.init() == 0
        one.run("transfers", [b"fine"], committed=True)
        one.run("transfers", [b"undone"], committed=False)
        two.begin("transfers", 0)
        two.produce("transfers", [b"waiting"])
        one.run("transfers", [b"behind"], committed=True)
        found = kafka.json("/topics/transfers/messages?start=oldest")
        states = [(it["value"]["text"], it["state"]) for it in found["lines"]]
        assert states == [
            ("fine", "committed"),
            ("undone", "aborted"),
            ("waiting", "open"),
            ("behind", "held"),
        ]


def test_search_export_and_producing_work(kafka: Console, page: Page) -> None:
    make_topic(kafka, "target", [])
    page.goto(f"{kafka.url}/topics/orders/messages/search?q=user-3&limit=10")
    expect(page.locator("[data-progress-text]")).to_contain_text(
        "Enough found. 10 hits.", timeout=180_000
    )
    found = kafka.json("/topics/orders/messages/search?kind=header&header=trace-id&q=t-17")
    assert len(found["records"]) == 1
    _, _, lines = kafka.get("/topics/orders/messages/export/file?start=oldest")
    assert len([json.loads(it) for it in lines.splitlines()]) == 120
    fields = {"records": lines, "lines": "envelope"}
    status, done = kafka.post("/topics/target/messages/produce/many", fields)
    assert (status, done["message"]) == (200, "120 records written to partition 0 (120).")


def test_tail_follows(kafka: Console, page: Page) -> None:
    make_topic(kafka, "tail", [Outgoing(b"old", partition=0, timestamp_ms=NOW_MS)])
    page.goto(f"{kafka.url}/topics/tail/messages/live?at=0:1")
    with kafka.cluster() as cluster:
        send(cluster, "tail", [Outgoing(b"new", partition=0)], now_ms=NOW_MS)
    expect(page.locator("tr.record")).to_have_count(1)
    expect(page.locator("tr.record")).to_contain_text("new")
