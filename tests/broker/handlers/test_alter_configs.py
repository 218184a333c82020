"""AlterConfigs, which replaces, in every version."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 33


def resource(kind: int, name: str, *settings: tuple[str, str | None]) -> dict[str, object]:
    configs = [{"name": it, "value": value} for it, value in settings]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def test_settings_are_replaced_in_every_version(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1, settings={"segment.ms": "5"})])
        for version in range(3):
            wanted = [resource(2, "t", ("retention.ms", str(version)))]
            answer = await client.call(KEY, version, resources=wanted, validate_only=False)
            assert [it.error_code for it in answer.responses] == [ErrorCode.NONE]
            overrides = server.metadata.image.topic_overrides("t")
            assert overrides == {"retention.ms": str(version)}

    converse(tmp_path, conversation)


def test_wrong_requests_change_nothing(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1)])
        wanted = [
            resource(2, "no", ("retention.ms", "1")),
            resource(2, "t", ("retention.ms", "1"), ("retention.ms", "2")),
            resource(4, "1", ("message.max.bytes", "1")),
            resource(4, "1", ("message.max.bytes", "2")),
            resource(32, "g", ("consumer.session.timeout.ms", None)),
        ]
        answer = await client.call(KEY, 2, resources=wanted, validate_only=False)
        assert [it.error_code for it in answer.responses] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_REQUEST,
        ]
        good = [resource(2, "t", ("retention.ms", "1"))]
        answer = await client.call(KEY, 2, resources=good, validate_only=True)
        assert [it.error_code for it in answer.responses] == [ErrorCode.NONE]
        assert not server.metadata.image.configs

    converse(tmp_path, conversation)
