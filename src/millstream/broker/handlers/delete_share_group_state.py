"""DeleteShareGroupState, v0: delete the state of share partitions, for the group coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._share_state_requests import answer_partitions
from millstream.broker.services import RequestContext
from millstream.coordination.share_state import SharePartitionKey

if TYPE_CHECKING:
    from kio.schema.delete_share_group_state.v0.request import DeleteShareGroupStateRequest

    from millstream.protocol.messages import Fields


async def delete_share_group_state(
    context: RequestContext, request: DeleteShareGroupStateRequest
) -> Fields:
    persister = context.services.coordinators.share_state

    async def delete(key: SharePartitionKey, partition: Any) -> dict[str, Any]:
        await persister.delete(key)
        return {}

    return await answer_partitions(context, request, delete)
