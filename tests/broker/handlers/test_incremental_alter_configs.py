"""IncrementalAlterConfigs: set, delete, append, subtract."""

from __future__ import annotations

import logging
from pathlib import Path

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 44
SET, DELETE, APPEND, SUBTRACT = range(4)


def resource(kind: int, name: str, *changes: tuple[str, int, str | None]) -> dict[str, object]:
    configs = [
        {"name": it, "config_operation": operation, "value": value}
        for it, operation, value in changes
    ]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


def test_settings_are_changed_in_every_version(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1, settings={"segment.ms": "5"})])
        for version in range(2):
            wanted = [
                resource(
                    2,
                    "t",
                    ("retention.ms", SET, str(version)),
                    ("segment.ms", DELETE, None),
                    ("cleanup.policy", APPEND, "compact"),
                )
            ]
            answer = await client.call(KEY, version, resources=wanted, validate_only=False)
            assert [it.error_code for it in answer.responses] == [ErrorCode.NONE]
            assert server.metadata.image.topic_overrides("t") == {
                "retention.ms": str(version),
                "cleanup.policy": "delete,compact",
            }

    converse(tmp_path, conversation)


def test_wrong_requests_change_nothing_and_others_go_through(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1)])
        wanted = [
            resource(2, "t", ("retention.ms", SET, "1"), ("no.such", SET, "1")),
            resource(4, "1", ("message.max.bytes", SET, "1"), ("message.max.bytes", SET, "2")),
            resource(4, "", ("message.max.bytes", SET, "5000")),
            resource(32, "g", ("consumer.session.timeout.ms", SET, "1")),
        ]
        answer = await client.call(KEY, 1, resources=wanted, validate_only=False)
        assert [it.error_code for it in answer.responses] == [
            ErrorCode.INVALID_CONFIG,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.NONE,
            ErrorCode.INVALID_CONFIG,
        ]
        assert server.config.message_max_bytes == 5000
        assert server.metadata.image.topic_overrides("t") == {}

    converse(tmp_path, conversation)


def test_validation_alone_changes_nothing(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        wanted = [resource(4, "1", ("message.max.bytes", SET, "5000"))]
        answer = await client.call(KEY, 1, resources=wanted, validate_only=True)
        assert [it.error_code for it in answer.responses] == [ErrorCode.NONE]
        assert server.config.message_max_bytes == 1_048_588

    converse(tmp_path, conversation)


def test_level_of_a_logger_is_changed(tmp_path: Path) -> None:
    name = "millstream.tests.incremental"
    logging.getLogger(name)

    async def conversation(server: BrokerServer, client: WireClient) -> None:
        for change, code in (
            ((name, SET, "DEBUG"), ErrorCode.NONE),
            ((name, APPEND, "DEBUG"), ErrorCode.INVALID_REQUEST),
            ((name, DELETE, None), ErrorCode.NONE),
        ):
            wanted = [resource(8, "1", change)]
            answer = await client.call(KEY, 1, resources=wanted, validate_only=False)
            assert [it.error_code for it in answer.responses] == [code]
        assert logging.getLogger(name).level == logging.NOTSET

    converse(tmp_path, conversation)
