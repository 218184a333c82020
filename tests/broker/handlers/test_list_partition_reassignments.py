"""ListPartitionReassignments: nothing moves, unless the metadata say so."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.coordination.cluster_records import PartitionChangeRecord
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.metadata.homes import decided_on
from tests.broker.serving import WireClient

KEY = 46


def test_moving_partitions_are_listed(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 2)])
        answer = await client.call(KEY, 0, timeout=1000, topics=None)
        assert (answer.error_code, answer.topics) == (ErrorCode.NONE, ())
        image = server.metadata.image
        moving = PartitionChangeRecord(1, image.topics["t"].id, adding_replicas=(2,))
        await server.metadata.change(decided_on(image.version, moving))
        named = [{"name": "t", "partition_indexes": [0, 1, 9]}, {"name": "no"}]
        for topics in (None, named):
            answer = await client.call(KEY, 0, timeout=1000, topics=topics)
            (topic,) = answer.topics
            assert [(it.partition_index, it.adding_replicas) for it in topic.partitions] == [
                (1, (2,))
            ]

    converse(tmp_path, conversation)
