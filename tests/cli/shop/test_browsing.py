"""The console of the shop, and its account in a topic."""

from __future__ import annotations

import json
import socket
import urllib.request

import pytest

from millstream import Broker
from millstream.cli.cluster import Cluster
from millstream.cli.shop import browsing
from millstream.cli.shop.audit import Finding, Verdict, read_topic
from millstream.cli.shop.browsing import ACCOUNT, has_display, start_console, write_account


@pytest.mark.parametrize(
    ("environment", "platform", "found"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "10.0.0.1"}, "darwin", False),
    ],
)
def test_browser_is_opened_where_somebody_sees_it(
    environment: dict[str, str], platform: str, found: bool
) -> None:
    assert has_display(environment, platform) is found


def test_console_takes_another_port_if_its_own_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken, Broker.start() as broker:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(browsing, "PREFERRED", f"127.0.0.1:{taken.getsockname()[1]}")
        server = start_console(broker.bootstrap_servers)
        assert server is not None
        try:
            with urllib.request.urlopen(f"{server.url}pipelines", timeout=60) as answer:
                assert b"No pipeline has reported yet" in answer.read()
        finally:
            server.stop()


def test_account_is_a_record_for_each_thing_that_was_compared() -> None:
    findings = [Finding("topic alerts", 7, 7, 0, 0), Finding("topic frauds", 3, 2, 1, 0)]
    with Broker.start() as broker:
        write_account(broker.bootstrap_servers, Verdict(10, 10, findings))
        cluster = Cluster(broker.bootstrap_servers)
        found = [json.loads(it.value() or b"") for it in read_topic(cluster, ACCOUNT)]
    assert {it["what"]: (it["lost"], it["holds"]) for it in found} == {
        "topic alerts": (0, True),
        "topic frauds": (1, False),
    }
