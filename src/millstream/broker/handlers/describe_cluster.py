"""DescribeCluster, v0-2: the brokers, the controller and the cluster's id.

* v1: endpoint type (brokers only: there is no controller quorum to describe)
* v2: fenced brokers, where asked for
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import cluster_operations
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.metadata import OPERATIONS_NOT_ASKED

if TYPE_CHECKING:
    from kio.schema.describe_cluster.v2.request import DescribeClusterRequest

    from millstream.protocol.messages import Fields

BROKERS = 1
CONTROLLERS = 2


def describe_cluster(context: RequestContext, request: DescribeClusterRequest) -> Fields:
    if request.endpoint_type == CONTROLLERS:
        raise ApiError(
            ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of "
            "type CONTROLLER",
        )
    if request.endpoint_type != BROKERS:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unknown endpoint type {request.endpoint_type}"
        )
    services = context.services
    brokers = []
    for node in services.metadata.image.brokers.values():
        endpoint = node.endpoint(context.listener)
        if endpoint is not None and (request.include_fenced_brokers or not node.fenced):
            brokers.append(
                {
                    "broker_id": node.id,
                    "host": endpoint.host,
                    "port": endpoint.port,
                    "rack": node.rack,
                    "is_fenced": node.fenced,
                }
            )
    asked = request.include_cluster_authorized_operations
    return {
        "error_code": ErrorCode.NONE,
        "cluster_id": services.cluster_id,
        "controller_id": services.controller_id,
        "brokers": brokers,
        "cluster_authorized_operations": (
            cluster_operations(context) if asked else OPERATIONS_NOT_ASKED
        ),
    }
