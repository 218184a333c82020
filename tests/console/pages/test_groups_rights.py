"""The pages of groups, transactions and dead letters for a user who may not see everything."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from playwright.sync_api import Page, expect

from millstream.admin.groups import commit_offsets
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ErrorCode
from tests.console.conftest import USERS, Console, check_accessible
from tests.peers.patience import wait_until

Ask = Callable[..., tuple[int, Any]]


def security(user: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": USERS[user],
    }


@pytest.fixture
def alice(secured: Console) -> Ask:
    """Asks as alice: the status, and the JSON."""
    authorization = "Basic " + base64.b64encode(f"alice:{USERS['alice']}".encode()).decode()

    def ask(path: str, fields: dict[str, Any] | None = None) -> tuple[int, Any]:
        headers = {
            "Authorization": authorization,
            "Accept": "application/json",
            "Content_Type": "application/json",
            "X_Millstream_Console": "1",
        }
        body = None if fields is None else json.dumps(fields).encode()
        method = "GET" if fields is None else "POST"
        status, _, text = secured.ask(method, path, body, **headers)
        return status, json.loads(text)

    return ask


@pytest.fixture
def shop(secured: Console) -> None:
    """Groups of the admin: alice may describe `open` and its topic, and nothing else."""
    with Cluster(secured.bootstrap_servers, security=security("admin")) as cluster:
        create_topics(cluster, [NewTopic("orders", 1), NewTopic("dlq.orders", 1)])
        for group in ("open", "closed"):
            commit_offsets(cluster, group, {("orders", 0): 0})
    admin = AdminClient({"bootstrap.servers": secured.bootstrap_servers, **security("admin")})
    allowed = [
        AclBinding(
            kind,
            name,
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            AclOperation.DESCRIBE,
            AclPermissionType.ALLOW,
        )
        for kind, name in (
            (ResourceType.GROUP, "open"),
            (ResourceType.TOPIC, "orders"),
            (ResourceType.TOPIC, "dlq.orders"),
        )
    ]
    for future in admin.create_acls(allowed).values():
        future.result(60)


@pytest.mark.usefixtures("shop")
def test_user_sees_what_the_access_control_allows(alice: Ask) -> None:
    wait_until(lambda: bool(alice("/groups")[1]["groups"]["rows"]))
    assert [it["group"] for it in alice("/groups")[1]["groups"]["rows"]] == ["open"]
    assert alice("/groups/open")[0] == 200
    status, answer = alice("/groups/closed")
    assert (status, answer["error"]) == (403, "GROUP_AUTHORIZATION_FAILED")
    assert alice("/transactions")[1]["transactions"]["rows"] == []
    assert alice("/share-groups")[1]["groups"]["rows"] == []
    assert alice("/share-groups/closed")[0] == 403
    assert alice("/transactions/somebody")[0] in (403, 404)


@pytest.mark.usefixtures("shop")
def test_action_without_the_right_is_refused_and_names_it(alice: Ask) -> None:
    status, answer = alice("/groups/open/delete", {"confirmation": "open"})
    assert (status, answer["error"]) == (403, "GROUP_AUTHORIZATION_FAILED")
    assert "Delete on the group" in answer["message"]
    status, answer = alice("/groups/open/reset", {"target": "latest"})
    assert status == 403
    assert "Read on the" in answer["message"]
    status, answer = alice("/dead-letters/dlq.orders/purge", {"confirmation": "dlq.orders"})
    assert status in (200, 403)  # an empty topic has nothing to delete
    choice = {"which": "all", "confirmation": "dlq.orders"}
    assert alice("/dead-letters/dlq.orders/replay", choice)[0] == 403


@pytest.mark.usefixtures("shop")
def test_refusal_is_a_page_that_says_which_right_is_missing(secured: Console, page: Page) -> None:
    page.goto(secured.url + "/log-in?next=/groups/closed")
    page.get_by_label("User").fill("alice")
    page.get_by_label("Password").fill(USERS["alice"])
    page.expected_errors.append("403")  # type: ignore[attr-defined]
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("main")).to_contain_text("You lack the right")
    check_accessible(page)


@pytest.mark.usefixtures("shop")
def test_records_in_flight_need_the_right_to_describe_group_and_topic(secured: Console) -> None:
    with Cluster(secured.bootstrap_servers, security=security("alice")) as cluster:

        def ask(group: str, topic: str) -> Any:
            asked = {"group_id": group, "topics": [{"topic_name": topic, "partitions": [0]}]}
            broker = cluster.broker_ids()[0]
            return cluster.ask_broker(broker, "describe_share_partitions", asked)

        assert ask("closed", "orders").error_code is ErrorCode.GROUP_AUTHORIZATION_FAILED
        [topic] = ask("open", "secret").topics
        assert topic.partitions[0].error_code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        wait_until(lambda: ask("open", "orders").error_code is ErrorCode.NONE)
        [topic] = ask("open", "orders").topics
        code = topic.partitions[0].error_code  # there is no share group of this name yet
        assert code is ErrorCode.INVALID_REQUEST
