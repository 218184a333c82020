"""UnregisterBroker, v0: forget a broker that is gone for good (KIP-631)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.handlers._rights import require_cluster
from millstream.broker.services import RequestContext
from millstream.errors import ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest

    from millstream.protocol.messages import Fields


async def unregister_broker(context: RequestContext, request: UnregisterBrokerRequest) -> Fields:
    require_cluster(context, Operation.ALTER)
    await context.services.actions.unregister_broker(request.broker_id)
    return {"error_code": ErrorCode.NONE, "error_message": None}
