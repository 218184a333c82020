"""A bridge that runs is seen in its cluster, with what it counted, and its end too."""

from __future__ import annotations

import time

from millstream.admin.bridges import COUNTS_MAX, ShownBridge, read_bridges
from millstream.bridges.config import parse_config
from millstream.bridges.counts import Counts
from millstream.bridges.publishing import counts_of
from millstream.bridges.running import Bridge
from millstream.client.cluster import Cluster
from millstream.testing.pytest_plugin import SharedBroker
from tests.bridges.conftest import request, wait_for


def seen(cluster: Cluster, name: str) -> ShownBridge | None:
    found = read_bridges(cluster, time.time_ns() // 1_000_000)
    return next((it for it in found if it.name == name), None)


def test_bridge_is_seen_while_it_runs_and_when_it_stops(millstream: SharedBroker) -> None:
    topic, name = millstream.unique_topic(), "seen"
    config = parse_config(
        {
            "name": name,
            "broker": millstream.bootstrap_servers,
            "http": {"listen": "127.0.0.1:0", "produce": [topic]},
        }
    )
    with Cluster(millstream.bootstrap_servers) as cluster:
        with Bridge(config, "millstream bridge seen.toml") as bridge:
            assert bridge.http is not None
            body = {"records": [{"value": 1}, {"value": 2}]}
            headers = {"content-type": "application/json"}
            assert request(bridge.http.address, "POST", f"/topics/{topic}", body, headers)[0] == 200
            wait_for(lambda: (it := seen(cluster, name)) and it.status.total("in") == 2)
            shown = seen(cluster, name)
            assert shown is not None
            assert shown.status.addresses == (f"http://{bridge.http.address}",)
            assert (shown.state, shown.status.command) == ("running", "millstream bridge seen.toml")
        wait_for(lambda: (it := seen(cluster, name)) and it.state == "stopped")
        quiet = parse_config(
            {"name": "quiet", "broker": config.broker, "publish_status": False}
            | {"http": {"listen": "127.0.0.1:0"}}
        )
        with Bridge(quiet):
            pass
        assert seen(cluster, "quiet") is None


def test_what_was_lost_is_published_if_not_everything_can_be() -> None:
    counts = Counts()
    for number in range(COUNTS_MAX + 10):
        counts.add("http_requests", route="r" * 1000, status=str(number))
    counts.add("mold_lost", 7, stream="prices")
    found = counts_of(counts)
    assert len(found) == COUNTS_MAX
    assert (found[0].name, found[0].value) == ("mold_lost", 7)
    assert len(found[1].by["route"]) == 300
