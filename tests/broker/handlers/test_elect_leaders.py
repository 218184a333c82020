"""ElectLeaders: never needed on a single broker."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 43


def test_election_is_not_needed_in_every_version(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1)])
        wanted = [{"topic": "t", "partitions": [0, 5]}, {"topic": "no", "partitions": [0]}]
        for version in range(3):
            answer = await client.call(KEY, version, topic_partitions=wanted, timeout=1000)
            results = {
                (it.topic, partition.partition_id): partition.error_code
                for it in answer.replica_election_results
                for partition in it.partition_result
            }
            assert results == {
                ("t", 0): ErrorCode.ELECTION_NOT_NEEDED,
                ("t", 5): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ("no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            }

    converse(tmp_path, conversation)


def test_partitions_that_need_none_are_not_mentioned_when_all_are_meant(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1)])
        answer = await client.call(KEY, 2, election_type=1, topic_partitions=None, timeout=1000)
        assert (answer.error_code, answer.replica_election_results) == (ErrorCode.NONE, ())

    converse(tmp_path, conversation)


def test_unknown_kind_of_election_is_refused(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        answer = await client.call(KEY, 2, election_type=7, topic_partitions=None, timeout=1000)
        assert answer.error_code == ErrorCode.INVALID_REQUEST

    converse(tmp_path, conversation)
