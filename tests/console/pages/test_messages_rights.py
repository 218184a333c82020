"""ACLs decide what a user sees and does on the pages of messages."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from millstream.admin.outgoing import Outgoing, send
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from tests.console.conftest import Console

TOPIC, LITERAL, ALLOW, READ, DESCRIBE = 2, 3, 3, 3, 8


@pytest.fixture(scope="module", autouse=True)
def topics(secured: Console) -> None:
    """alice may read `public`, and only see that `secret` is there."""
    assert secured.broker is not None
    security = {
        name: it
        for name, it in secured.broker.client_settings("admin").items()
        if name != "bootstrap.servers"
    }
    with Cluster(secured.bootstrap_servers, security=security) as cluster:
        create_topics(cluster, [NewTopic("public", 1), NewTopic("secret", 1)])
        for name in ("public", "secret"):
            send(cluster, name, [Outgoing(b"in " + name.encode(), partition=0)], now_ms=1)
        rights = [("public", READ), ("public", DESCRIBE), ("secret", DESCRIBE)]
        creations = [
            {
                "resource_type": TOPIC,
                "resource_name": topic,
                "resource_pattern_type": LITERAL,
                "principal": "User:alice",
                "host": "*",
                "operation": operation,
                "permission_type": ALLOW,
            }
            for topic, operation in rights
        ]
        cluster.any_connection().call("create_acls", {"creations": creations})


def as_alice(secured: Console, path: str, body: Any = None) -> tuple[int, str]:
    credentials = base64.b64encode(b"alice:alice-secret").decode()
    headers = {
        "Authorization": f"Basic {credentials}",
        "Accept": "application/json",
        "X-Millstream-Console": "1",
        "Content-Type": "application/json",
    }
    data = None if body is None else json.dumps(body).encode()
    status, _, text = secured.ask("POST" if data else "GET", path, data, **headers)
    return status, text


def test_user_reads_only_what_acls_allow(secured: Console) -> None:
    status, text = as_alice(secured, "/topics/public/messages")
    assert (status, json.loads(text)["lines"][0]["value"]["text"]) == (200, "in public")
    for path in ("messages", "messages/0/0", "messages/0/0/value", "messages/export/file"):
        status, text = as_alice(secured, f"/topics/secret/{path}")
        assert (status, "needs Read on the topic" in text) == (403, True), path
        assert "in secret" not in text
    for path in ("messages", "messages/0/0", "messages/live", "messages/export/file"):
        assert as_alice(secured, f"/topics/hidden/{path}")[0] in (403, 404)


def test_user_produces_only_what_acls_allow(secured: Console) -> None:
    path = "/topics/public/messages/produce/one"
    status, text = as_alice(secured, path, {"value": "x"})
    assert status == 403, text
    assert "needs" in text


def test_search_runs_with_the_rights_of_its_user(secured: Console) -> None:
    pytest.importorskip("duckdb")
    status, text = as_alice(secured, "/topics/public/messages/search?q=public")
    assert (status, len(json.loads(text)["records"])) == (200, 1)
    status, text = as_alice(secured, "/topics/secret/messages/search?q=secret")
    assert status in (400, 403), text
    assert "Read" in text
    assert "in secret" not in text


def test_refusal_is_a_page_that_says_why(secured: Console, page: Page) -> None:
    page.expected_errors.append("403")  # type: ignore[attr-defined]
    page.goto(f"{secured.url}/topics/secret/messages")
    page.get_by_label("User").fill("alice")
    page.get_by_label("Password").fill("alice-secret")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("the user needs Read on the topic")).to_be_visible()
    page.goto(f"{secured.url}/topics/secret/messages/live")
    page.goto(f"{secured.url}/topics/public/messages")
    expect(page.locator("tr.record")).to_contain_text("in public")
