"""DescribeConfigs in every version, for every kind of resource."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 32


def resource(kind: int, name: str, *keys: str) -> dict[str, object]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}


def test_topic_is_described_in_every_version(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1, settings={"retention.ms": "9"})])
        for version in range(1, 5):
            answer = await client.call(
                KEY,
                version,
                resources=[resource(2, "t", "retention.ms", "no.such")],
                include_synonyms=True,
                include_documentation=True,
            )
            (result,) = answer.results
            assert result.error_code == ErrorCode.NONE
            (entry,) = result.configs
            assert (entry.name, entry.value, entry.config_source) == ("retention.ms", "9", 1)
            assert [(it.name, it.value, it.source) for it in entry.synonyms] == [
                ("retention.ms", "9", 1),
                ("log.retention.hours", "168", 5),
            ]
            if version >= 3:
                assert entry.config_type == 5
                assert "older than this" in entry.documentation

    converse(tmp_path, conversation)


def test_synonyms_and_documentation_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        answer = await client.call(KEY, 4, resources=[resource(4, "1", "message.max.bytes")])
        (entry,) = answer.results[0].configs
        assert (entry.value, entry.read_only) == ("1048588", False)
        assert (entry.synonyms, entry.documentation) == ((), None)

    converse(tmp_path, conversation)


def test_every_resource_is_answered_for_itself(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        wanted = [
            resource(2, "no"),
            resource(4, ""),
            resource(4, "9"),
            resource(8, "1", "root"),
            resource(16, "m"),
            resource(32, "g", "consumer.session.timeout.ms"),
            resource(99, "x"),
        ]
        answer = await client.call(KEY, 4, resources=wanted)
        assert [(it.resource_type, it.error_code, len(it.configs)) for it in answer.results] == [
            (2, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
            (4, ErrorCode.NONE, 0),
            (4, ErrorCode.INVALID_REQUEST, 0),
            (8, ErrorCode.NONE, 1),
            (16, ErrorCode.NONE, 3),
            (32, ErrorCode.NONE, 1),
            (99, ErrorCode.INVALID_REQUEST, 0),
        ]

    converse(tmp_path, conversation)
