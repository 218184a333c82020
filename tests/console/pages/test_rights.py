"""Pages about topics and the cluster for a user with few rights: what is refused is said, the rest
is shown, and nothing leaks."""

from __future__ import annotations

import base64

import pytest

from millstream import Broker
from millstream.admin.topics import create_topic
from millstream.client.cluster import Cluster
from tests.console.conftest import USERS, Console


def as_user(name: str) -> dict[str, str]:
    """Headers of a script that logs in as a user."""
    token = base64.b64encode(f"{name}:{USERS[name]}".encode()).decode()
    return {"Authorization": f"Basic {token}", "Accept": "application/json"}


@pytest.fixture(scope="module")
def hidden(secured: Console) -> str:
    """A topic of the superuser."""
    broker = secured.broker
    assert isinstance(broker, Broker)
    settings = broker.client_settings("admin")
    servers = settings.pop("bootstrap.servers")
    with Cluster(servers, security=settings) as cluster:
        create_topic(cluster, "hidden", partitions=2)
    return "hidden"


def test_user_without_rights_sees_no_topics_and_why(secured: Console, hidden: str) -> None:
    status, _, body = secured.get("/", **as_user("alice"))
    assert status == 200
    assert hidden not in body
    assert "needs Describe on the cluster" in body
    status, _, body = secured.get("/topics", **as_user("alice"))
    assert (status, hidden in body) == (200, False)
    status, _, body = secured.get("/cluster", **as_user("alice"))
    assert status == 200
    assert "CLUSTER_AUTHORIZATION_FAILED" in body
    assert hidden not in body


def test_topic_of_others_is_refused(secured: Console, hidden: str) -> None:
    for path in (f"/topics/{hidden}", f"/topics/{hidden}/settings"):
        status, _, body = secured.get(path, **as_user("alice"))
        assert (status, "TOPIC_AUTHORIZATION_FAILED" in body) == (403, True), body


@pytest.mark.parametrize(
    ("path", "fields", "right"),
    [
        ("/topics", {"name": "mine"}, "needs Create"),
        ("/topics/hidden/settings", {"setting": "retention.ms", "value": "1"}, "AUTHORIZATION"),
        ("/topics/hidden/partitions", {"count": "9"}, "AUTHORIZATION"),
        ("/topics/hidden/delete", {"confirmation": "hidden"}, "AUTHORIZATION"),
        ("/topics/hidden/elect", {}, "AUTHORIZATION"),
        ("/cluster/elect", {}, "AUTHORIZATION"),
        ("/cluster/cancel", {"topic": "hidden"}, "AUTHORIZATION"),
    ],
)
def test_actions_without_the_right_are_refused(
    secured: Console, hidden: str, path: str, fields: dict[str, str], right: str
) -> None:
    status, answer = secured.post(path, fields, **as_user("alice"))
    assert status == 403, answer
    assert right in f"{answer['message']} {answer['error']}"
    status, _, body = secured.get(f"/topics/{hidden}", **as_user("admin"))
    assert status == 200
    assert '"total":2' in body


def test_history_of_one_user_is_not_shown_to_another(secured: Console, hidden: str) -> None:
    status, _, body = secured.get("/topics", **as_user("admin"))
    assert (status, hidden in body) == (200, True)
    status, _, body = secured.get(f"/history?chart=size&topic={hidden}", **as_user("alice"))
    assert status == 200
    assert "hidden" not in body
