"""AlterShareGroupOffsets over the wire."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.group_calls import run
from tests.broker.handlers.share_group_calls import alter, beat, empty_group, offsets
from tests.broker.serving import WireClient


def test_positions_are_set_in_partitions_that_exist(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        answer = await alter(client, 5, 6, 7, 8)
        assert answer.error_code.value == 0
        (topic,) = answer.responses
        assert topic.topic_id == server.metadata.image.topics["orders"].id
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [p.error_code.value for p in topic.partitions] == [0, 0, 0, unknown]
        (absent,) = (await alter(client, 5, topic="absent")).responses
        assert absent.partitions[0].error_code.value == unknown
        assert absent.partitions[0].error_message
        await empty_group(client)  # it finds them as they were set
        (known,) = (await offsets(client)).topics
        assert [p.start_offset for p in known.partitions] == [5, 6, 7]
        assert [p.lag for p in known.partitions] == [-5, -6, -7]  # beyond the end, as Kafka counts

    run(tmp_path, scenario)


def test_positions_are_not_set_behind_members(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await beat(client)
        answer = await alter(client, 5)
        assert answer.error_code.value == ErrorCode.NON_EMPTY_GROUP
        assert (answer.responses, bool(answer.error_message)) == ((), True)

    run(tmp_path, scenario)
