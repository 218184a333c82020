"""`/`: the brokers of the cluster."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from millstream.client.cluster import Cluster
from millstream.console.answers import page
from millstream.console.lists import Listed, Wanted, listed


@dataclass(frozen=True)
class BrokerRow:
    id: int
    host: str
    port: int
    is_controller: bool


@dataclass(frozen=True)
class Overview:
    cluster_id: str
    brokers: Listed[BrokerRow]


def load(cluster: Cluster, wanted: Wanted) -> Overview:
    answer = cluster.retrying(lambda: cluster.any_connection().call("metadata", {"topics": []}))
    rows = [
        BrokerRow(int(it.node_id), it.host, int(it.port), it.node_id == answer.controller_id)
        for it in answer.brokers
    ]
    brokers = listed(
        rows,
        wanted,
        text=lambda row: f"{row.id} {row.host}:{row.port}",
        keys={"id": lambda row: row.id, "host": lambda row: row.host},
        default="id",
    )
    return Overview(answer.cluster_id or "", brokers)


async def show(request: Request) -> Response:
    wanted = Wanted.of(request.query_params)
    return await page(
        request, "overview.html", lambda cluster: load(cluster, wanted), live={"brokers": 2.0}
    )


ROUTES = [Route("/", show)]
