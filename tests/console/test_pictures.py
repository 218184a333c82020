"""The pictures of the console in the documentation: a shop, as a newcomer sees it.

    pytest tests/console/test_pictures.py --screenshots       writes docs/images/console-*.png

Without the option they are made for nobody: that each page can be shown in both colours.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Literal

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from playwright.sync_api import Browser, expect

from millstream import Broker
from millstream.admin.bridges import SETTINGS
from millstream.admin.bridges import TOPIC as BRIDGES_TOPIC
from millstream.admin.following import create_missing
from millstream.admin.pipeline_records import SourceStatus
from millstream.admin.pipelines import create_status_topics
from millstream.admin.topics import create_topic
from millstream.client.cluster import Cluster
from tests.broker.archiving.scenes import settings as archive_settings
from tests.console.conftest import Console, driving, start_console
from tests.console.pages.test_bridges import EDGE
from tests.console.pages.test_bridges import put as put_bridges
from tests.console.pages.test_pipelines import RUNNING, SALES, put
from tests.peers.patience import PATIENCE_SECONDS

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SECONDS = 60  # of the shop's life, so that charts have something to show
TOPICS = {"orders": 6, "payments": 3, "clicks": 4, "shipments": 3, "dlq.orders": 1}
PAGES = {
    "overview": ("/", "Overview"),
    "messages": ("/topics/orders/messages", "orders"),
    "groups": ("/groups", "Groups"),
    "pipeline": ("/pipelines/sales", "sales"),
    "bridge": ("/bridges/edge", "edge"),
    "archive": ("/archive", "Archive"),
}
ARCHIVED = ("orders", "payments")
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")


def run_shop(console: Console) -> None:
    """Orders, payments and clicks that come and go in waves, and groups that fall behind."""
    random = Random(17)
    producer = Producer({"bootstrap.servers": console.bootstrap_servers})
    with Cluster(console.bootstrap_servers) as cluster:
        for name, partitions in TOPICS.items():
            archived = {"remote.storage.enable": "true", "internal.segment.bytes": "40000"}
            settings = archived if name in ARCHIVED else {}
            create_topic(cluster, name, partitions=partitions, settings=settings)
        create_status_topics(cluster)
        create_missing(cluster, {BRIDGES_TOPIC: SETTINGS})
        put(cluster, SALES, RUNNING)
    for second in range(SECONDS):
        for number in range(int(120 + 70 * math.sin(second / 8)) + random.randrange(20)):
            customer = random.choice(["ada", "grace", "ken", "linus", "margaret"])
            order = {"order": 40 * second + number, "customer": customer}
            order["amount"] = round(random.uniform(5, 300), 2)
            producer.produce("orders", json.dumps(order), key=customer)
            if number % 3 == 0:
                producer.produce("clicks", json.dumps({"page": "/", "by": customer}), customer)
            if number % 7 == 0:
                producer.produce("payments", json.dumps(order), key=customer)
            if number == 99:
                producer.produce("dlq.orders", b"{", headers=[("__dlq.errors.topic", b"orders")])
        assert producer.flush(PATIENCE_SECONDS) == 0
        if second % 5 == 0:
            publish(console, second, random)
            for group, share in (("billing", 0.98), ("analytics", 0.7), ("mailer", 0.9)):
                commit(console, group, int(second * 20 * share))
        time.sleep(1)


def publish(console: Console, second: int, random: Random) -> None:
    """What a pipeline says of itself."""
    rate = 120 + 70 * math.sin(second / 8)
    status = replace(
        RUNNING,
        batch=second,
        rows=100 * (second + 1),
        rows_per_second=rate,
        lag=random.randrange(40),
        batch_ms=350 + random.randrange(150),
        sources={"orders": SourceStatus(100 * (second + 1), rate, 5, 2)},
    )
    counts = tuple(replace(it, value=it.value * (second + 1) // 10) for it in EDGE.counts)
    with Cluster(console.bootstrap_servers) as cluster:
        put(cluster, status)
        put_bridges(cluster, replace(EDGE, counts=counts))


def commit(console: Console, group: str, offset: int) -> None:
    consumer = Consumer({"bootstrap.servers": console.bootstrap_servers, "group.id": group})
    offsets = [TopicPartition("orders", it, offset) for it in range(TOPICS["orders"])]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """A console on a broker with an archive, whose path says nothing about this machine."""
    monkeypatch.chdir(tmp_path)
    with Broker.start(config=archive_settings("archive")) as broker:
        console = start_console(broker.bootstrap_servers)
        try:
            yield console
        finally:
            console.server.stop()


@pytest.mark.slow
def test_pages_for_the_documentation(
    shop: Console, browser: Browser, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    directory = IMAGES if request.config.getoption("--screenshots") else tmp_path
    run_shop(shop)
    with driving(browser):
        for scheme in SCHEMES:
            take(shop, browser, scheme, directory)


def take(
    console: Console, browser: Browser, scheme: Literal["light", "dark"], directory: Path
) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    for name, (path, title) in PAGES.items():
        page.goto(f"{console.url}{path}")
        expect(page.get_by_role("heading", level=1, name=title)).to_be_visible()
        page.wait_for_timeout(2500)  # charts are drawn after the first samples have come
        file = directory / f"console-{name}-{scheme}.png"
        page.screenshot(path=file)
        assert file.stat().st_size > 10_000
    context.close()
