"""PushTelemetry, v0: metrics of a client, as OpenTelemetry's MetricsData (KIP-714).

They are served in /metrics until the client pushes again. Offered only while metrics are served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers.get_telemetry_subscriptions import collected, describe
from millstream.broker.services import RequestContext
from millstream.errors import ErrorCode

if TYPE_CHECKING:
    from kio.schema.push_telemetry.v0.request import PushTelemetryRequest

    from millstream.protocol.messages import Fields


async def push_telemetry(context: RequestContext, request: PushTelemetryRequest) -> Fields:
    await collected(context).push(
        describe(context, request.client_instance_id),
        request.subscription_id,
        request.compression_type,
        bytes(request.metrics),
        context.services.clock.monotonic_ms(),
        is_last=request.terminating,
    )
    return {"error_code": ErrorCode.NONE}
