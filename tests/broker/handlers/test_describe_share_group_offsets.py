"""DescribeShareGroupOffsets over the wire: positions, lag, and what is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.server import BrokerServer
from millstream.coordination.share_state import SharePartitionKey
from millstream.records.record import Record, encode_batch
from tests.broker.handlers.group_calls import run
from tests.broker.handlers.share_group_calls import alter, beat, empty_group, offsets
from tests.broker.serving import WireClient


@pytest.mark.parametrize("version", [0, 1])
def test_positions_are_told_with_their_lag(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        batch = encode_batch([Record(index, 0, None, b"x") for index in range(10)])
        await server.partitions.find("orders", 0).append(batch, acks=-1)
        await alter(client, 4)
        await empty_group(client)
        key = SharePartitionKey("g", server.metadata.image.topics["orders"].id, 0)
        state = await server.coordinators.share_state.read(key, 3)
        await server.coordinators.share_state.write(
            key,
            state_epoch=state.state_epoch,
            leader_epoch=3,
            start_offset=5,
            delivery_complete_count=2,
            batches=(),
        )
        (topic,) = (await offsets(client, version=version)).topics
        assert topic.topic_name == "orders"
        first, *others = topic.partitions
        assert (first.start_offset, first.leader_epoch) == (5, 3)
        assert [partition.start_offset for partition in others] == [-1, -1]
        if version:
            assert first.lag == 10 - 5 - 2
            assert [partition.lag for partition in others] == [-1, -1]

    run(tmp_path, scenario)


def test_what_is_not_there_has_no_position(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        everything = await offsets(client)
        assert (everything.error_code.value, everything.topics) == (0, ())
        asked = [
            {"topic_name": "orders", "partitions": [0, 9]},
            {"topic_name": "absent", "partitions": [0]},
        ]
        group = await offsets(client, asked)
        assert group.error_code.value == 0
        for topic in group.topics:
            for partition in topic.partitions:
                assert (partition.error_code.value, partition.start_offset) == (0, -1)
        assert (await offsets(client, [])).topics == ()
        await beat(client)
        assert [len(topic.partitions) for topic in (await offsets(client)).topics] == [3]

    run(tmp_path, scenario)
