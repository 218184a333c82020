"""The console on Apache Kafka: every page and action about topics and the cluster, in a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from millstream.bridges.config import parse_config
from millstream.bridges.running import Bridge
from tests.conformance.brokers import SETTINGS
from tests.console.conftest import Console, check_accessible, start_console
from tests.console.records import commit, produce
from tests.peers.kafka import start_kafka

pytestmark = [pytest.mark.slow, pytest.mark.java]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    server = start_kafka(tmp_path_factory.mktemp("kafka"), SETTINGS)
    console = start_console(server.bootstrap)
    try:
        yield console
    finally:
        console.server.stop()
        server.stop()


def test_topic_lives_its_life_in_the_browser(kafka: Console, page: Page) -> None:
    page.goto(f"{kafka.url}/topics")
    page.get_by_role("button", name="Create topic").click()
    dialog = page.get_by_role("dialog", name="Create topic")
    dialog.locator("[name=name]").fill("on-kafka")
    dialog.locator("[name=partitions]").fill("2")
    dialog.locator("[name=settings]").fill("retention.ms=3600000")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("status")).to_contain_text("Topic on-kafka is created.")
    produce(kafka.bootstrap_servers, "on-kafka", 8)
    commit(kafka.bootstrap_servers, "kafka-readers", "on-kafka", 3)
    first = page.get_by_role("table", name="Partitions").get_by_role("row").nth(1)
    expect(first.get_by_role("cell").nth(4)).to_have_text("8")
    readers = page.get_by_role("table", name="Groups that read it")
    expect(readers).to_contain_text("kafka-readers")
    expect(readers).to_contain_text("5")
    check_accessible(page)
    page.goto(f"{kafka.url}/topics/on-kafka/settings?edit=retention.ms")
    page.get_by_label("New value of retention.ms").fill("60000")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("is now '60000'")
    row = page.get_by_role("row").filter(has=page.get_by_text("retention.ms", exact=True))
    expect(row).to_contain_text("1 min")
    page.goto(f"{kafka.url}/topics/on-kafka")
    page.get_by_role("button", name="Add partitions").click()
    page.get_by_role("dialog").get_by_label("Partitions in all").fill("4")
    page.get_by_role("dialog").get_by_role("button", name="Add partitions").click()
    expect(page.get_by_role("table", name="Partitions").get_by_role("row")).to_have_count(5)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("textbox").fill("on-kafka")
    page.get_by_role("dialog").get_by_role("button", name="Delete topic").click()
    expect(page.get_by_role("status")).to_contain_text("Topic on-kafka is deleted.")
    assert "on-kafka" not in [it["name"] for it in kafka.json("/topics")["topics"]["rows"]]


def test_overview_and_cluster_show_kafka(kafka: Console, page: Page) -> None:
    assert kafka.post("/topics", {"name": "seen", "partitions": 3})[0] == 200
    produce(kafka.bootstrap_servers, "seen", 20)
    page.goto(kafka.url)
    expect(page.get_by_role("table", name="Disks")).to_be_visible()
    expect(page.locator("#chart-records canvas")).to_be_visible()
    page.goto(f"{kafka.url}/cluster")
    expect(page.get_by_role("table", name="Brokers")).to_contain_text(kafka.bootstrap_servers)
    expect(page.get_by_role("table", name="Metadata quorum")).to_be_visible()
    expect(page.get_by_role("table", name="Features")).to_contain_text("metadata.version")
    check_accessible(page)
    page.get_by_role("table", name="Brokers").get_by_role("link").first.click()
    expect(page.get_by_role("table", name="Settings")).to_contain_text("log.dirs")
    status, answer = kafka.post("/cluster/elect", {})
    assert (status, "already has" in answer["message"]) == (200, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "<script>"}, "cannot create topic"),
        ({"name": "x", "settings": "no.such.setting=1"}, "no.such.setting"),
        ({"name": "x", "replication_factor": "9"}, "cannot create topic"),
    ],
)
def test_bad_topics_are_refused_by_kafka(
    kafka: Console, fields: dict[str, str], message: str
) -> None:
    status, answer = kafka.post("/topics", fields)
    assert status == 400, answer
    assert message in answer["message"]


def test_what_is_only_on_millstream_is_said(kafka: Console, page: Page) -> None:
    page.goto(f"{kafka.url}/archive")
    expect(page.get_by_text("The brokers of this cluster tell nothing")).to_be_visible()
    check_accessible(page)
    page.goto(f"{kafka.url}/excision")
    expect(page.get_by_text("Only Millstream’s brokers do that.")).to_be_visible()
    check_accessible(page)
    assert kafka.post("/topics", {"name": "kept", "partitions": 1})[0] == 200
    page.goto(f"{kafka.url}/topics/kept")
    expect(page.get_by_role("heading", name="Backlog policy")).to_have_count(0)
    found = kafka.json("/topics/kept")
    assert (found["policy"], found["backlog"]) == (None, None)


def test_bridges_and_plans_are_the_same_on_kafka(kafka: Console, page: Page) -> None:
    config = parse_config(
        {"broker": kafka.bootstrap_servers, "http": {"listen": "127.0.0.1:0"}, "name": "on-kafka"}
    )
    page.goto(f"{kafka.url}/bridges")
    expect(page.get_by_text("No bridge has reported yet")).to_be_visible()
    with Bridge(config):
        expect(page.get_by_role("table", name="Bridges")).to_contain_text("on-kafka")
        check_accessible(page)
    expect(page.get_by_role("table", name="Bridges")).to_contain_text("stopped")
    assert kafka.post("/topics", {"name": "planned", "partitions": 2})[0] == 200
    page.goto(f"{kafka.url}/topics/planned/reassign")
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_text("Nothing has to move")).to_be_visible()
    check_accessible(page)
