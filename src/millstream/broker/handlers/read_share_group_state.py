"""ReadShareGroupState, v0: the state of share partitions, for the partition leader.

With leader epoch -1, for tools, it fences no leader, as in Kafka. Kafka then returns the persisted
state; this returns the current state with locked records, if this broker leads the partition.
Delayed records then have their own state, 10, because the answer has no field for due times. Other
brokers of the cluster get them as entries (`coordination.share_state.to_entries`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._share_state_requests import answer_partitions
from millstream.broker.peers.peers import CLIENT_ID_PREFIX
from millstream.broker.services import RequestContext
from millstream.config.setting import LONG_MAX
from millstream.coordination.share_state import (
    DELAYED,
    NO_LEADER_EPOCH,
    SharePartitionKey,
    ShareState,
    StateBatch,
    to_entries,
)

if TYPE_CHECKING:
    from kio.schema.read_share_group_state.v0.request import ReadShareGroupStateRequest

    from millstream.protocol.messages import Fields


async def read_share_group_state(
    context: RequestContext, request: ReadShareGroupStateRequest
) -> Fields:
    persister = context.services.coordinators.share_state
    is_from_broker = (context.client_id or "").startswith(CLIENT_ID_PREFIX)

    async def read(key: SharePartitionKey, partition: Any) -> dict[str, Any]:
        if partition.leader_epoch == NO_LEADER_EPOCH and is_from_broker:
            return _fields(await persister.peek(key), with_due_times=True)
        if partition.leader_epoch == NO_LEADER_EPOCH:
            state = _live(context, key, await persister.peek(key))
            return _fields(state, delayed_after_ms=context.services.clock.now_ms())
        state = await persister.read(key, partition.leader_epoch)
        return _fields(state, with_due_times=is_from_broker)

    nothing = {"state_epoch": 0, "start_offset": 0, "state_batches": []}
    return await answer_partitions(context, request, read, when_failed=nothing)


def _live(context: RequestContext, key: SharePartitionKey, state: ShareState) -> ShareState:
    leaders = context.services.share_partitions
    if leaders.get(*key) is None:
        return state
    return state._replace(batches=tuple(leaders.describe(key)))


def _fields(
    state: ShareState, *, delayed_after_ms: int = LONG_MAX, with_due_times: bool = False
) -> dict[str, Any]:
    entries = to_entries(state.batches) if with_due_times else state.batches
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": [
            {
                "first_offset": entry.first_offset,
                "last_offset": entry.last_offset,
                "delivery_state": DELAYED
                if isinstance(entry, StateBatch) and entry.due_ms > delayed_after_ms
                else int(entry.delivery_state),
                "delivery_count": entry.delivery_count,
            }
            for entry in entries
        ],
    }
