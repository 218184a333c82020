"""Webhooks whose ids the broker checks, with several bridges."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.admin.outgoing import Outgoing
from millstream.bridges.http.conditions import conditional, prepare_topic
from millstream.bridges.http.signatures import sign, standard_key
from millstream.errors import ConfigError
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import bridge_to, read_all, request

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def deliver(address: str, hook: str, message_id: str) -> int:
    now = int(time.time())
    headers = {
        "webhook-id": message_id,
        "webhook-timestamp": str(now),
        "webhook-signature": sign([standard_key(SECRET)], message_id, now, b"{}"),
    }
    return request(address, "POST", f"/hooks/{hook}", b"{}", headers)[0]


def test_record_is_the_first_of_its_hook_and_id() -> None:
    found = conditional(Outgoing(b"{}", headers=[("a", b"b")]), "shop", "id-1")
    assert found.key == b"shop/id-1"
    assert found.headers == [
        ("a", b"b"),
        ("millstream-version", b"1"),
        ("millstream-event-id", b"id-1"),
    ]
    first, second = (conditional(Outgoing(b"{}"), "shop", "") for _ in range(2))
    assert first.key != second.key


def test_webhook_that_reaches_two_bridges_at_the_same_time_is_written_once(
    millstream: SharedBroker,
) -> None:
    topic, ids = millstream.unique_topic(), [f"id-{it}" for it in range(60)]
    hook = {"topic": topic, "secrets": [SECRET], "exact": True}
    with ExitStack() as stack:
        bridges = [
            stack.enter_context(
                bridge_to(millstream, http={"listen": "127.0.0.1:0"}, hooks={"a": hook, "b": hook})
            )
            for _ in range(2)
        ]
        addresses = [it.http.address for it in bridges if it.http is not None]
        with ThreadPoolExecutor(8) as pool:
            wanted = [(at, "a", it) for it in ids for at in (*addresses, *addresses)]
            assert {*pool.map(lambda it: deliver(*it), wanted)} == {204}
        assert deliver(addresses[0], "b", ids[0]) == 204  # the same id of another hook
    found = Counter(
        (it.key(), dict(it.headers())["webhook-id"]) for it in read_all(millstream, topic)
    )
    expected = {(f"a/{it}".encode(), it.encode()) for it in ids} | {(b"b/id-0", b"id-0")}
    assert found == Counter(expected)


def test_topic_without_the_setting_is_refused(millstream: SharedBroker) -> None:
    settings, topic = millstream.client_settings(), millstream.unique_topic()
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    with pytest.raises(ConfigError, match=f"topic {topic} has none; set it, or leave out exact"):
        prepare_topic(settings, topic)
