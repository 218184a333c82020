"""WriteShareGroupState, v0-1: write changes of share partitions, for the partition leader.

* v1: how many records are done with (KIP-1226)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.broker.handlers._rights import may_cluster
from millstream.broker.handlers._share_state_requests import by_topic, outcome, share_key
from millstream.broker.services import RequestContext
from millstream.coordination.share_state import (
    DUE_TIME,
    DeliveryState,
    SharePartitionKey,
    StateBatch,
    StateWrite,
    from_entries,
)
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.write_share_group_state.v1.request import WriteShareGroupStateRequest

    from millstream.protocol.messages import Fields

# Kafka does not look at them. A record that the state says is held, but by nobody, would stay so.
_PERSISTED_STATES = [state for state in DeliveryState if state is not DeliveryState.ACQUIRED]


async def write_share_group_state(
    context: RequestContext, request: WriteShareGroupStateRequest
) -> Fields:
    if not request.group_id:
        return {"results": []}  # as Kafka does
    is_broker = may_cluster(context, Operation.CLUSTER_ACTION)
    keys: list[SharePartitionKey] = []
    errors: dict[int, ApiError | None] = {}  # by place in the request
    writes: dict[int, StateWrite] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            place = len(keys)
            keys.append(share_key(request, topic, partition))
            try:
                if not is_broker:
                    raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
                writes[place] = _write(keys[place], partition)
            except ApiError as error:
                errors[place] = error
    errors |= zip(writes, await _write_all(context, list(writes.values())), strict=True)
    answers = (outcome(key, errors[place]) for place, key in enumerate(keys))
    return {"results": by_topic(request, answers.__next__)}


async def _write_all(context: RequestContext, writes: list[StateWrite]) -> list[ApiError | None]:
    try:
        return await context.services.coordinators.share_state.write_all(writes)
    except ApiError as error:
        return [error] * len(writes)


def _write(key: SharePartitionKey, partition: Any) -> StateWrite:
    return StateWrite(
        key,
        partition.state_epoch,
        partition.leader_epoch,
        partition.start_offset,
        partition.delivery_complete_count,
        tuple(_batches(partition.state_batches)),
    )


def _batches(entries: Sequence[Any]) -> list[StateBatch]:
    previous = None
    for entry in entries:
        if entry.delivery_state != DUE_TIME or previous != entry.first_offset:
            _check(entry)
        previous = entry.first_offset
    return from_entries(entries)


def _check(batch: Any) -> None:
    first, last, count = batch.first_offset, batch.last_offset, batch.delivery_count
    if not 0 <= first <= last or count < 0:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"Invalid batch: offsets {first} to {last}, delivery count {count}.",
        )
    if batch.delivery_state not in _PERSISTED_STATES:
        raise ApiError(
            ErrorCode.INVALID_REQUEST,
            f"{batch.delivery_state} is not a persistent delivery state; use one of "
            f"{', '.join(f'{state:d} ({state.name})' for state in _PERSISTED_STATES)}.",
        )
