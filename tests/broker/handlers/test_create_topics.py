"""CreateTopics in every version."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.handlers.administering import converse
from tests.broker.serving import WireClient

KEY = 19


def topic(name: str, partitions: int = 1, **settings: str) -> dict[str, object]:
    configs = [{"name": it.replace("_", "."), "value": value} for it, value in settings.items()]
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": -1,
        "assignments": (),
        "configs": configs,
    }


def test_topic_is_created_in_every_version(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        for version in range(2, 8):
            name = f"t{version}"
            answer = await client.call(KEY, version, topics=[topic(name, 2)], timeout=1000)
            assert [it.error_code for it in answer.topics] == [ErrorCode.NONE]
            assert len(server.metadata.image.topics[name].partitions) == 2

    converse(tmp_path, conversation)


def test_answer_tells_id_shape_and_settings(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        answer = await client.call(KEY, 7, topics=[topic("t", 2, retention_ms="9")], timeout=1000)
        (made,) = answer.topics
        assert made.topic_id == server.metadata.image.topics["t"].id
        assert (made.num_partitions, made.replication_factor) == (2, 1)
        settings = {it.name: (it.value, it.config_source) for it in made.configs}
        assert settings["retention.ms"] == ("9", 1)
        assert settings["cleanup.policy"] == ("delete", 5)
        assert "internal.segment.bytes" not in settings

    converse(tmp_path, conversation)


def test_topics_of_one_request_have_their_own_settings(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        wanted = [
            topic("a"),
            topic("b", retention_ms="9"),
            topic("c"),
            topic("d", retention_ms="8"),
        ]
        answer = await client.call(KEY, 7, topics=wanted, timeout=1000)
        retention = {
            made.name: it.value
            for made in answer.topics
            for it in made.configs
            if it.name == "retention.ms"
        }
        assert retention == {"a": "604800000", "b": "9", "c": "604800000", "d": "8"}

    converse(tmp_path, conversation)


def test_duplicates_and_wrong_topics_are_refused_beside_good_ones(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        wanted = [topic("twice"), topic("good"), topic("no good"), topic("twice")]
        answer = await client.call(KEY, 5, topics=wanted, timeout=1000)
        codes = {it.name: it.error_code for it in answer.topics}
        assert codes == {
            "good": ErrorCode.NONE,
            "no good": ErrorCode.INVALID_TOPIC_EXCEPTION,
            "twice": ErrorCode.INVALID_REQUEST,
        }
        assert list(server.metadata.image.topics) == ["good"]

    converse(tmp_path, conversation)


def test_validation_alone_creates_nothing(tmp_path: Path) -> None:
    async def conversation(server: BrokerServer, client: WireClient) -> None:
        answer = await client.call(KEY, 7, topics=[topic("t")], timeout=1000, validate_only=True)
        assert answer.topics[0].error_code == ErrorCode.NONE
        assert not server.metadata.image.topics

    converse(tmp_path, conversation)
