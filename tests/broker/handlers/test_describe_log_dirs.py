"""DescribeLogDirs: what is where, and how much room there is."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 35


def test_directory_is_described_in_every_version(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 2), NewTopic("u", 1)])
        wanted = [{"topic": "t", "partitions": [1, 7]}]
        for version in range(1, 6):
            for topics, expected in ((None, {"t": {0, 1}, "u": {0}}), (wanted, {"t": {1}})):
                answer = await client.call(KEY, version, topics=topics)
                (result,) = answer.results
                assert (result.error_code, result.log_dir) == (ErrorCode.NONE, str(tmp_path))
                found = {
                    it.name: {partition.partition_index for partition in it.partitions}
                    for it in result.topics
                }
                assert found == expected
                if version >= 4:
                    assert 0 < result.usable_bytes <= result.total_bytes

    converse(tmp_path, conversation)


def test_failed_directory_says_so(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        server.directories.directories[1].fail(OSError(5, "Input/output error"))
        answer = await client.call(KEY, 5, topics=None)
        assert [it.error_code for it in answer.results] == [
            ErrorCode.NONE,
            ErrorCode.KAFKA_STORAGE_ERROR,
        ]

    both = f"{tmp_path / 'a'},{tmp_path / 'b'}"
    converse(tmp_path, conversation, log_dirs=both)
