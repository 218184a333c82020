"""Hints to the leader of a partition, for clients that asked another broker (KIP-951).

The client continues with the leader at once, instead of asking for metadata first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.errors import ErrorCode
from millstream.protocol.endpoints import NodeEndpoint

if TYPE_CHECKING:
    from millstream.broker.services import RequestContext
    from millstream.protocol.produce import TopicKey

ABOUT_THE_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)


def current_leader(context: RequestContext, topic: TopicKey, index: int) -> tuple[int, int] | None:
    """The id and the epoch of the partition's leader; None for an unknown partition."""
    partition = context.services.metadata.image.partition(topic, index)
    return None if partition is None else (partition.leader, partition.leader_epoch)


def endpoints_of(context: RequestContext, leaders: Iterable[int]) -> list[NodeEndpoint]:
    """The addresses of live brokers, on the client's own listener."""
    brokers = context.services.metadata.image.brokers
    endpoints = []
    for leader in sorted(set(leaders)):
        broker = brokers.get(leader)
        endpoint = None if broker is None or broker.fenced else broker.endpoint(context.listener)
        if broker is not None and endpoint is not None:
            endpoints.append(NodeEndpoint(leader, endpoint.host, endpoint.port, broker.rack))
    return endpoints
