"""Share state that another broker keeps, and the errors that it answers with."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.peers.share_state import RemoteShareState
from millstream.coordination.cluster import SHARE_STATE_TOPIC
from millstream.coordination.share_state import (
    NO_START_OFFSET,
    DeliveryState,
    SharePartitionKey,
    StateBatch,
)
from millstream.errors import ApiError, ErrorCode
from tests.broker.peers.cluster import Cluster, run


def test_state_is_written_and_read_on_another_broker(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(SHARE_STATE_TOPIC, 2)
        key = SharePartitionKey("g", await cluster.create("t", 1), 0)
        remote = RemoteShareState(cluster.brokers[1].peers)
        await remote.initialize(2, key, 3, 10)
        state = await remote.read(2, key, 5)
        assert (state.state_epoch, state.start_offset, state.batches) == (3, 10, ())
        batches = (
            StateBatch(10, 12, DeliveryState.ACKNOWLEDGED, 1),
            StateBatch(13, 13, DeliveryState.AVAILABLE, 2),
            StateBatch(14, 15, DeliveryState.AVAILABLE, 2, due_ms=1_700_000_000_000),
        )
        await remote.write(
            2,
            key,
            state_epoch=3,
            leader_epoch=5,
            start_offset=10,
            delivery_complete_count=3,
            batches=batches,
        )
        local = await cluster.brokers[2].coordinators.share_state.peek(key)
        assert local.batches == (await remote.read(2, key, 5)).batches == batches
        summary = await remote.read_summary(2, key, -1)
        assert (summary.start_offset, summary.delivery_complete_count) == (10, 3)
        with pytest.raises(ApiError) as fenced:
            await remote.read(2, key, 4)
        assert fenced.value.code is ErrorCode.FENCED_LEADER_EPOCH
        with pytest.raises(ApiError) as elsewhere:
            await remote.read(1, key, 5)
        assert elsewhere.value.code is ErrorCode.NOT_COORDINATOR
        await remote.delete(2, key)
        assert (await remote.read_summary(2, key, -1)).start_offset == NO_START_OFFSET

    run(tmp_path, scenario)
