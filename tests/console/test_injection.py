"""Names and contents that try to become code: every page that shows them is opened.

Everything that a client may choose freely is hostile here: group ids, member and client ids,
transactional ids, keys, values, headers, users, quotas. Pages are found by following links.
"""

from __future__ import annotations

import re
from urllib.parse import urljoin, urlsplit

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from playwright.sync_api import Page, expect

from millstream.admin.quotas import alter_quotas
from millstream.admin.users import set_password
from tests.console.conftest import Console

PAGES_MAX = 80
ATTACKS = (
    "<script>window.pwned=1</script>",
    "\"'><img src=x onerror=window.pwned=1>",
    "{{7*7}}${7*7}<svg/onload=window.pwned=1>",
    "javascript:window.pwned=1",
    "</title></script><script>window.pwned=1//",
    "../../..?x=1#y&z=%2e%2e%00",
    "a\r\ndata: <hx-partial hx-target='body'>x</hx-partial>\r\n\r\nevent: x",
    "' hx-get='/log-out' hx-trigger='load' x='",
)


@pytest.fixture(scope="module")
def attacked(console: Console) -> Console:
    servers = console.bootstrap_servers
    with console.cluster() as cluster:
        for attack in ATTACKS:
            set_password(cluster, attack, "x", mechanisms=["SCRAM-SHA-256"])
            alter_quotas(cluster, {"user": attack}, {"request_percentage": 50.0})
            alter_quotas(cluster, {"client-id": attack}, {"producer_byte_rate": 1e9})
    for attack in ATTACKS:
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "client.id": attack,
                "transactional.id": attack,
                "transaction.timeout.ms": 600_000,
            }
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce(
            "records", key=attack, value=attack, headers={"name " + attack: attack.encode()}
        )
        producer.produce("records", value='{"' + "a" * 10 + '": ' + '"<script>window.pwned=1"}')
        producer.commit_transaction(60)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": attack})
        consumer.commit(offsets=[TopicPartition("records", 0, 1)], asynchronous=False)
        consumer.close()
    return console


@pytest.mark.slow
def test_no_page_runs_what_it_shows(attacked: Console, page: Page) -> None:
    page.expected_errors += ["404", "400"]  # type: ignore[attr-defined]
    waiting, seen, shown = ["/"], set[str](), set[str]()
    while waiting and len(seen) < PAGES_MAX:
        path = waiting.pop(0)
        # One page of each kind for each attack is enough: not every sort and offset.
        kind = re.sub(r"\d+", "0", re.sub(r"[?&](sort|page|q|size|range)=[^&]*", "", path))
        if kind in seen:
            continue
        seen.add(kind)
        answer = page.goto(attacked.url + path, wait_until="domcontentloaded")
        assert answer is not None
        assert answer.status < 500, f"{path}: {answer.status}"
        if "text/html" not in answer.headers.get("content-type", ""):
            continue
        assert page.evaluate("window.pwned") is None, path
        assert page.locator("main").count() == 1, path
        text = page.locator("main").inner_text()
        shown |= {attack for attack in ATTACKS if attack in text}
        for link in page.locator("a[href]").evaluate_all("all => all.map(it => it.href)"):
            parts = urlsplit(urljoin(page.url, link))
            assert parts.scheme == "http", link
            assert f"{parts.scheme}://{parts.netloc}" == attacked.url, link
            if "download" not in parts.query and "export" not in parts.path:
                waiting.append(parts.path + (f"?{parts.query}" if parts.query else ""))
    assert len(seen) > len(ATTACKS)
    assert {it for it in ATTACKS if "\r" not in it} <= shown


def test_groups_run_nothing(attacked: Console, page: Page) -> None:
    """The quick one: the list, and what its live stream brings."""
    page.goto(attacked.url + "/groups?size=500")
    for attack in ATTACKS[:3]:
        expect(page.locator("main")).to_contain_text(attack)
    with page.expect_response(lambda it: "live=1" in it.url):
        page.reload()  # the page, and its live stream
    assert page.evaluate("window.pwned") is None
