"""GetTelemetrySubscriptions, v0: which metrics a client should push, and how often (KIP-714).

Offered only while metrics are served. Counters are requested since the start of the client, not
since its last push.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from millstream.broker.services import RequestContext
from millstream.broker.telemetry.clients import NO_ID, ClientTelemetry
from millstream.broker.telemetry.subscriptions import ClientDescription
from millstream.errors import ApiError, ErrorCode
from millstream.records.compression import Compression

if TYPE_CHECKING:
    from kio.schema.get_telemetry_subscriptions.v0.request import (
        GetTelemetrySubscriptionsRequest,
    )

    from millstream.protocol.messages import Fields

ACCEPTED = (Compression.ZSTD, Compression.LZ4, Compression.GZIP, Compression.SNAPPY)


def get_telemetry_subscriptions(
    context: RequestContext, request: GetTelemetrySubscriptionsRequest
) -> Fields:
    telemetry = collected(context)
    now_ms = context.services.clock.monotonic_ms()
    described = describe(context, request.client_instance_id)
    instance_id, subscription = telemetry.subscribe(described, now_ms)
    return {
        "error_code": ErrorCode.NONE,
        "client_instance_id": instance_id,
        "subscription_id": subscription.id,
        "accepted_compression_types": ACCEPTED,
        "push_interval": subscription.interval_ms,
        "telemetry_max_bytes": context.services.config.telemetry_max_bytes,
        "delta_temporality": False,
        "requested_metrics": subscription.metrics,
    }


def collected(context: RequestContext) -> ClientTelemetry:
    """Raises `ApiError` if this broker collects no metrics of clients."""
    telemetry = context.services.telemetry
    if telemetry is None:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "client telemetry is not collected here")
    return telemetry


def describe(context: RequestContext, instance_id: UUID | None) -> ClientDescription:
    client = context.client
    name, _, version = client.software.partition(" ")
    return ClientDescription(
        instance_id=instance_id or NO_ID,
        client_id=context.client_id or "",
        software_name=name,
        software_version=version,
        address=context.client_host,
        port=client.port,
    )
