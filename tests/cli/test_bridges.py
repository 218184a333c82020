"""`millstream bridges`: what bridges have published."""

from __future__ import annotations

import json
from collections.abc import Callable

from millstream.admin.bridges import SETTINGS, TOPIC, BridgeStatus, Count
from millstream.admin.following import create_missing, write_records
from millstream.admin.pipeline_records import encode
from millstream.client.cluster import Cluster

Ok = Callable[..., str]


def test_bridges_are_listed_and_forgotten(ok: Ok, bootstrap_servers: str) -> None:
    counts = (Count("records_in", 5), Count("zeromq_lost", 2, {"reason": "gap"}))
    status = BridgeStatus("edge", "r", "stopped", 0, "host", 7, counts=counts)
    with Cluster(bootstrap_servers) as cluster:
        create_missing(cluster, {TOPIC: SETTINGS})
        write_records(cluster, TOPIC, [("status:edge", encode(status))])
    shown = ok("bridges", "list").splitlines()
    assert shown[-1].split() == ["edge", "stopped", "5", "0", "2", "0", "host:7", "-"]
    (row,) = json.loads(ok("bridges", "list", "--json"))
    lost = row["status"]["counts"][1]
    assert lost == {"name": "zeromq_lost", "value": 2, "by": {"reason": "gap"}}
    assert "forgot edge" in ok("bridges", "forget", "edge")
    assert "no bridges" in ok("bridges", "list")
