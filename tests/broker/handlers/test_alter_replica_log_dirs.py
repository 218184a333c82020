"""AlterReplicaLogDirs: which moves are accepted, and what DescribeLogDirs says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY, DESCRIBE = 34, 35


def two_directories(tmp_path: Path) -> str:
    return f"{tmp_path / 'a'},{tmp_path / 'b'}"


async def alter(
    client: WireClient, path: Path | str, *wanted: tuple[str, int], version: int = 2
) -> dict[tuple[str, int], ErrorCode]:
    topics = [{"name": name, "partitions": [index]} for name, index in wanted]
    answer = await client.call(KEY, version, dirs=[{"path": str(path), "topics": topics}])
    return {
        (topic.topic_name, partition.partition_index): partition.error_code
        for topic in answer.results
        for partition in topic.partitions
    }


async def described(client: WireClient) -> dict[tuple[str, bool], Any]:
    """What each directory has, by its name and whether it is on its way there."""
    answer = await client.call(DESCRIBE, 5, topics=None)
    return {
        (Path(result.log_dir).name, partition.is_future_key): partition
        for result in answer.results
        for topic in result.topics
        for partition in topic.partitions
    }


@pytest.mark.parametrize("version", [1, 2])
def test_what_cannot_be_moved(tmp_path: Path, version: int) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1)])
        elsewhere = await alter(client, "/nowhere", ("t", 0), version=version)
        assert elsewhere == {("t", 0): ErrorCode.LOG_DIR_NOT_FOUND}
        unknown = ("t", 7), ("u", 0), ("__cluster_metadata", 0)
        assert await alter(client, tmp_path / "b", *unknown, version=version) == {
            ("t", 7): ErrorCode.REPLICA_NOT_AVAILABLE,
            ("u", 0): ErrorCode.REPLICA_NOT_AVAILABLE,
            ("__cluster_metadata", 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
        }
        server.directories.directories[1].fail(OSError(5, "Input/output error"))
        failed = await alter(client, tmp_path / "b", ("t", 0), version=version)
        assert failed == {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR}

    converse(tmp_path, conversation, log_dirs=two_directories(tmp_path))


def test_replica_that_comes_later_is_created_there(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        for name in ("x", "y"):
            for directory in "a", "b":
                wanted = f"{name}{directory}"
                await alter(client, tmp_path / directory, (wanted, 0))
                await server.topics.create([NewTopic(wanted, 1)])
                log = server.directories.logs[wanted, 0]
                assert log.directory.path == str(tmp_path / directory)

    converse(tmp_path, conversation, log_dirs=two_directories(tmp_path))


def test_move_is_described_until_it_ends(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await alter(client, tmp_path / "a", ("t", 0))  # its place, when it is created
        await server.topics.create([NewTopic("t", 1)])
        started = await alter(client, tmp_path / "b", ("t", 0))
        assert started == {("t", 0): ErrorCode.NONE}
        again = await alter(client, tmp_path / "b", ("t", 0))
        assert again == {("t", 0): ErrorCode.NONE}
        await server.log_moves.idle()
        now = await described(client)
        assert now.keys() == {("b", False)}

    converse(tmp_path, conversation, log_dirs=two_directories(tmp_path))
