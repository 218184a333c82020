"""InitializeShareGroupState, v0: set the start of share partitions, for the group coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._share_state_requests import answer_partitions
from millstream.broker.services import RequestContext
from millstream.coordination.share_state import SharePartitionKey

if TYPE_CHECKING:
    from kio.schema.initialize_share_group_state.v0.request import InitializeShareGroupStateRequest

    from millstream.protocol.messages import Fields


async def initialize_share_group_state(
    context: RequestContext, request: InitializeShareGroupStateRequest
) -> Fields:
    persister = context.services.coordinators.share_state

    async def initialize(key: SharePartitionKey, partition: Any) -> dict[str, Any]:
        await persister.initialize(key, partition.state_epoch, partition.start_offset)
        return {}

    return await answer_partitions(context, request, initialize)
