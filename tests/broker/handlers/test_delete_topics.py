"""DeleteTopics by name and by id."""

from __future__ import annotations

import uuid
from pathlib import Path

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode, MillstreamError
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 20
UNKNOWN_ID = uuid.UUID(int=12345)


def test_topic_is_deleted_by_name_in_every_version(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        for version in range(1, 7):
            await server.topics.create([NewTopic("t", 1)])
            if version < 6:
                wanted = {"topic_names": ["t", "no", ""]}
            else:
                wanted = {"topics": [{"name": "t"}, {"name": "no"}, {"name": ""}]}
            answer = await client.call(KEY, version, timeout=1000, **wanted)
            codes = {it.name: it.error_code for it in answer.responses}
            missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert codes == {"t": ErrorCode.NONE, "no": missing, "": missing}
            assert not server.metadata.image.topics

    converse(tmp_path, conversation)


def test_topic_is_deleted_by_id(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1)])
        topic_id = server.metadata.image.topics["t"].id
        wanted = [{"topic_id": topic_id}, {"topic_id": UNKNOWN_ID}]
        answer = await client.call(KEY, 6, topics=wanted, timeout=1000)
        codes = {it.topic_id: (it.name, it.error_code) for it in answer.responses}
        assert codes == {
            topic_id: ("t", ErrorCode.NONE),
            UNKNOWN_ID: (None, ErrorCode.UNKNOWN_TOPIC_ID),
        }

    converse(tmp_path, conversation)


def test_ambiguous_wishes_are_refused(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1), NewTopic("u", 1)])
        topic_id = server.metadata.image.topics["t"].id
        wanted = [{}, {"name": "t", "topic_id": topic_id}, {"name": "u"}, {"name": "u"}]
        answer = await client.call(KEY, 6, topics=wanted, timeout=1000)
        assert {it.error_code for it in answer.responses} == {ErrorCode.INVALID_REQUEST}
        assert sorted(it.error_message for it in answer.responses) == [
            "Duplicate topic name.",
            "Neither topic name nor id were specified.",
            "You may not specify both topic name and topic id.",
        ]
        answer = await client.call(
            KEY, 6, topics=[{"name": "t"}, {"topic_id": topic_id}], timeout=1000
        )
        codes = sorted(it.error_code for it in answer.responses)
        assert codes == [ErrorCode.NONE, ErrorCode.INVALID_REQUEST]
        assert list(server.metadata.image.topics) == ["u"]

    converse(tmp_path, conversation)


def test_nothing_is_deleted_where_deletion_is_disabled(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1)])
        for version, code in (
            (1, ErrorCode.INVALID_REQUEST),
            (3, ErrorCode.TOPIC_DELETION_DISABLED),
        ):
            answer = await client.call(KEY, version, topic_names=["t"], timeout=1000)
            assert [it.error_code for it in answer.responses] == [code]
        assert "t" in server.metadata.image.topics

    converse(tmp_path, conversation, delete_topic_enable=False)


def test_each_topic_is_answered_while_the_metadata_cannot_be_reached(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        await server.topics.create([NewTopic("t", 1)])

        async def fail() -> None:
            raise MillstreamError("the connection to ZooKeeper was lost before the answer")

        server.metadata.refresh = fail  # type: ignore[method-assign,assignment]
        answer = await client.call(KEY, 6, topics=[{"name": "t"}], timeout=1000)
        assert [(it.name, it.error_code) for it in answer.responses] == [
            ("t", ErrorCode.REQUEST_TIMED_OUT)
        ]

    converse(tmp_path, conversation)
