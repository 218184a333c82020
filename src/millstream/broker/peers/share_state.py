"""The state of share partitions that other brokers keep (APIs 83 to 87).

Delayed records keep their due times (`coordination.share_state.to_entries`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.coordination.share_state import (
    NO_COUNT,
    SharePartitionKey,
    ShareState,
    ShareStateSummary,
    StateBatch,
    from_entries,
    to_entries,
)
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.peers.peers import Peers

TIMEOUT_SECONDS = 10.0


class RemoteShareState:
    """The persisters of other brokers. Every method raises `ApiError`."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers

    async def initialize(
        self, broker: int, key: SharePartitionKey, state_epoch: int, start_offset: int
    ) -> None:
        fields = {"state_epoch": state_epoch, "start_offset": start_offset}
        await self._ask(broker, "initialize_share_group_state", key, fields)

    async def read(self, broker: int, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        fields = {"leader_epoch": leader_epoch}
        answer = await self._ask(broker, "read_share_group_state", key, fields)
        return ShareState(
            state_epoch=int(answer.state_epoch),
            leader_epoch=leader_epoch,
            start_offset=int(answer.start_offset),
            delivery_complete_count=NO_COUNT,
            batches=tuple(from_entries(answer.state_batches)),
        )

    async def read_summary(
        self, broker: int, key: SharePartitionKey, leader_epoch: int
    ) -> ShareStateSummary:
        fields = {"leader_epoch": leader_epoch}
        answer = await self._ask(broker, "read_share_group_state_summary", key, fields)
        return ShareStateSummary(
            state_epoch=int(answer.state_epoch),
            leader_epoch=int(answer.leader_epoch),
            start_offset=int(answer.start_offset),
            delivery_complete_count=int(getattr(answer, "delivery_complete_count", NO_COUNT)),
        )

    async def write(
        self,
        broker: int,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        fields = {
            "state_epoch": state_epoch,
            "leader_epoch": leader_epoch,
            "start_offset": start_offset,
            "delivery_complete_count": delivery_complete_count,
            "state_batches": [
                {
                    "first_offset": entry.first_offset,
                    "last_offset": entry.last_offset,
                    "delivery_state": int(entry.delivery_state),
                    "delivery_count": entry.delivery_count,
                }
                for entry in to_entries(batches)
            ],
        }
        await self._ask(broker, "write_share_group_state", key, fields)

    async def delete(self, broker: int, key: SharePartitionKey) -> None:
        await self._ask(broker, "delete_share_group_state", key, {})

    async def _ask(
        self, broker: int, api: str, key: SharePartitionKey, fields: dict[str, Any]
    ) -> Any:
        """The answer for the one partition."""
        partitions = [{"partition": key.partition, **fields}]
        topics = [{"topic_id": key.topic_id, "partitions": partitions}]
        answer = await self._peers.call(
            broker,
            api,
            {"group_id": key.group_id, "topics": topics},
            timeout_seconds=TIMEOUT_SECONDS,
        )
        (result,) = answer.results
        (partition,) = result.partitions
        if partition.error_code != ErrorCode.NONE:
            raise ApiError(partition.error_code, partition.error_message)
        return partition
