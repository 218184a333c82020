"""CreatePartitions in every version."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 37


def test_topic_grows_in_every_version(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1)])
        for version in range(4):
            wanted = [{"name": "t", "count": version + 2, "assignments": None}]
            answer = await client.call(KEY, version, topics=wanted, timeout=1000)
            assert [it.error_code for it in answer.results] == [ErrorCode.NONE]
            assert len(server.metadata.image.topics["t"].partitions) == version + 2
        wanted = [{"name": "t", "count": 6, "assignments": [{"broker_ids": [1]}]}]
        answer = await client.call(KEY, 3, topics=wanted, timeout=1000, validate_only=True)
        assert [it.error_code for it in answer.results] == [ErrorCode.NONE]
        assert len(server.metadata.image.topics["t"].partitions) == 5

    converse(tmp_path, conversation)


def test_duplicates_and_unknown_topics_are_refused(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        twice = {"name": "t", "count": 2, "assignments": None}
        unknown = {"name": "no", "count": 2, "assignments": None}
        answer = await client.call(KEY, 3, topics=[twice, unknown, twice], timeout=1000)
        assert {it.name: it.error_code for it in answer.results} == {
            "t": ErrorCode.INVALID_REQUEST,
            "no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }

    converse(tmp_path, conversation)
