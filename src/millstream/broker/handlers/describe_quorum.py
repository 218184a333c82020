"""DescribeQuorum, v0-2: the metadata log, and the brokers that follow it (KIP-595, KIP-836).

* v1: times of the last fetches
* v2: messages of errors, directory ids, addresses (KIP-853)

There is no quorum of brokers: a log of one broker, a file that workers share, or ZooKeeper keeps
the metadata. In the terms of the answer, the leader is the controller, and a voter is a broker that
can become the controller: every one that is live. Observers are the others, whose log ends are
unknown. A broker's log end is the end of the metadata that it has read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import require_cluster
from millstream.broker.metadata.store import METADATA_TOPIC
from millstream.broker.peers.metadata_versions import metadata_versions
from millstream.broker.services import RequestContext
from millstream.errors import ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest

    from millstream.coordination.cluster import BrokerImage, ClusterImage
    from millstream.protocol.messages import Fields

UNKNOWN = -1


async def describe_quorum(context: RequestContext, request: DescribeQuorumRequest) -> Fields:
    require_cluster(context, Operation.DESCRIBE)
    wanted = [
        (topic.topic_name, [it.partition_index for it in topic.partitions])
        for topic in request.topics
    ]
    if wanted != [(METADATA_TOPIC, [0])]:
        return _answer((name, [_unknown(index) for index in indexes]) for name, indexes in wanted)
    services = context.services
    image = services.metadata.image
    live = [broker for broker in image.brokers.values() if not broker.fenced]
    others = [broker.id for broker in live if broker.id != services.broker_id]
    versions = await metadata_versions(services.peers, others)
    versions[services.broker_id] = image.version
    partition = _describe(context, image, versions)
    return _answer([(METADATA_TOPIC, [partition])], [_node(context, broker) for broker in live])


def _answer(
    topics: Iterable[tuple[str, list[dict[str, Any]]]], nodes: Iterable[dict[str, Any]] = ()
) -> Fields:
    return {
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "topics": [{"topic_name": name, "partitions": partitions} for name, partitions in topics],
        "nodes": nodes,
    }


def _unknown(index: int) -> dict[str, Any]:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return {
        "partition_index": index,
        "error_code": code,
        "error_message": code.description,
        "leader_id": UNKNOWN,
        "leader_epoch": UNKNOWN,
        "high_watermark": UNKNOWN,
        "current_voters": (),
        "observers": (),
    }


def _describe(
    context: RequestContext, image: ClusterImage, versions: dict[int, int]
) -> dict[str, Any]:
    services = context.services
    now_ms = services.clock.now_ms()

    def state(broker: BrokerImage) -> dict[str, Any]:
        version = versions.get(broker.id)
        is_current = version is not None and version >= image.version
        return {
            "replica_id": broker.id,
            "replica_directory_id": None,
            "log_end_offset": UNKNOWN if version is None else version + 1,
            "last_fetch_timestamp": UNKNOWN if version is None else now_ms,
            "last_caught_up_timestamp": now_ms if is_current else UNKNOWN,
        }

    leader_id = services.controller_id
    voters: list[dict[str, Any]] = []
    observers: list[dict[str, Any]] = []
    for broker in image.brokers.values():
        # The leader may have just stopped; Kafka's tools look for it among the voters.
        is_voter = not broker.fenced or broker.id == leader_id
        (voters if is_voter else observers).append(state(broker))
    return {
        "partition_index": 0,
        "error_code": ErrorCode.NONE,
        "error_message": None,
        "leader_id": leader_id,
        "leader_epoch": services.metadata.controller_epoch,
        "high_watermark": image.version + 1,
        "current_voters": voters,
        "observers": observers,
    }


def _node(context: RequestContext, broker: BrokerImage) -> dict[str, Any]:
    endpoint = broker.endpoint(context.listener)
    listeners = [] if endpoint is None else [endpoint]
    return {
        "node_id": broker.id,
        "listeners": [{"name": it.name, "host": it.host, "port": it.port} for it in listeners],
    }
