"""ReadShareGroupStateSummary, v0-1: start offsets of share partitions, for the group coordinator.

* v1: how many records from there on are done with (KIP-1226)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._share_state_requests import answer_partitions
from millstream.broker.services import RequestContext
from millstream.coordination.share_state import SharePartitionKey

if TYPE_CHECKING:
    from kio.schema.read_share_group_state_summary.v1.request import (
        ReadShareGroupStateSummaryRequest,
    )

    from millstream.protocol.messages import Fields


async def read_share_group_state_summary(
    context: RequestContext, request: ReadShareGroupStateSummaryRequest
) -> Fields:
    persister = context.services.coordinators.share_state

    async def read(key: SharePartitionKey, partition: Any) -> dict[str, Any]:
        summary = await persister.read_summary(key, partition.leader_epoch)
        return summary._asdict()

    nothing = {"state_epoch": 0, "leader_epoch": 0, "start_offset": 0}
    return await answer_partitions(context, request, read, when_failed=nothing)
