"""Handlers and quotas: what is fetched, and what is created and deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millstream.broker.handlers._quotas import is_broker
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.quotas.limits import CLIENT_ID, Limits
from millstream.broker.services import RequestContext
from millstream.errors import ErrorCode
from millstream.security.principal import Principal
from tests.broker.quota_calls import FETCH, Talk, fetch_fields, talk
from tests.broker.serving import WireClient

CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS = 19, 20, 37


def throttle_ms(answer: Any) -> int:
    return int(answer.throttle_time.total_seconds() * 1000)


# Fetch


def test_response_that_would_exceed_the_quota_is_sent_empty_and_not_counted(
    tmp_path: Path,
) -> None:
    async def scenario(it: Talk) -> None:
        for _ in range(4):
            await it.produce(300_000)
        await it.set_quota((CLIENT_ID, "app"), consumer_byte_rate=100_000)
        throttled, size = await it.fetch(0, max_bytes=600_000)
        assert (throttled, size // 300_000) == (0, 1)  # the next does not fit
        assert (await it.fetch(1, max_bytes=600_000))[0] == 0
        assert (await it.fetch(2, max_bytes=600_000))[0] == 0
        throttled, size = await it.fetch(3, max_bytes=600_000)
        assert 1900 < throttled < 2100
        assert size == 0
        assert it.muted() == 1
        it.unmute()
        it.clock.advance(11_000)  # nothing of it was counted
        assert (await it.fetch(3, max_bytes=600_000))[0] == 0

    talk(tmp_path, scenario)


def test_batch_larger_than_the_quota_of_a_window_is_fetched_then_the_client_waits(
    tmp_path: Path,
) -> None:
    async def scenario(it: Talk) -> None:
        await it.produce(300_000)
        await it.set_quota((CLIENT_ID, "app"), consumer_byte_rate=1000)
        throttled, size = await it.fetch(0)
        assert (throttled, size > 300_000) == (0, True)
        assert await it.fetch(0) == (10_000, 0)
        it.unmute()
        it.clock.advance(11_000)
        assert (await it.fetch(0))[1] > 300_000

    talk(tmp_path, scenario)


def test_quota_is_found_once_for_all_fetches_of_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(it: Talk) -> None:
        await it.produce(1000)
        await it.set_quota((CLIENT_ID, "app"), consumer_byte_rate=10_000)
        await it.fetch(0)
        with monkeypatch.context() as patch:
            patch.delattr(Limits, "find")
            assert (await it.fetch(0))[1] > 1000
        await it.set_quota((CLIENT_ID, "app"), consumer_byte_rate=1)  # applies at once
        assert (await it.fetch(0))[0] > 0

    talk(tmp_path, scenario)


def test_fetch_is_bounded_by_the_quota_of_a_window(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        for _ in range(50):
            await it.produce(10_000)
        await it.set_quota((CLIENT_ID, "app"), consumer_byte_rate=10_000)
        assert 50_000 < (await it.fetch(0))[1] <= 100_000

    talk(tmp_path, scenario)


def test_throttled_session_continues_and_loses_nothing(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.produce(90_000)
        await it.set_quota((CLIENT_ID, "app"), consumer_byte_rate=10_000)
        first = await it.client.call(FETCH, 11, **fetch_fields(0, session_epoch=0))
        session_id = first.session_id
        assert session_id > 0
        await it.set_quota((CLIENT_ID, "other"), producer_byte_rate=1)  # routes are made again
        async with WireClient.connected(it.server, "producer") as producer:
            await it.produce(50_000, producer)
        wanted = fetch_fields(1)["topics"]
        known = {"session_id": session_id, "topics": wanted}
        throttled = await it.client.call(FETCH, 11, **fetch_fields(0, session_epoch=1, **known))
        assert throttle_ms(throttled) > 0
        assert (throttled.session_id, throttled.responses) == (session_id, ())
        it.unmute()
        it.clock.advance(11_000)
        known = {"session_id": session_id, "topics": []}
        answer = await it.client.call(FETCH, 11, **fetch_fields(0, session_epoch=2, **known))
        assert throttle_ms(answer) == 0
        assert len(answer.responses[0].partitions[0].records) > 50_000

    talk(tmp_path, scenario)


def test_throttled_client_gets_no_new_session(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.produce(90_000)
        await it.set_quota((CLIENT_ID, "app"), consumer_byte_rate=100)
        assert (await it.fetch(0))[0] == 0
        answer = await it.client.call(FETCH, 11, **fetch_fields(0, session_epoch=0))
        assert throttle_ms(answer) == 10_000
        assert (answer.session_id, answer.responses) == (0, ())
        assert len(it.server.services.fetch_sessions) == 0

    talk(tmp_path, scenario)


@pytest.mark.parametrize("replica_id", [-2, 0])  # a tool, and what only claims to be a follower
def test_clients_cannot_evade_a_quota_as_replicas(tmp_path: Path, replica_id: int) -> None:
    async def scenario(it: Talk) -> None:
        await it.produce(90_000)
        await it.set_quota((CLIENT_ID, "app"), consumer_byte_rate=10)
        assert (await it.fetch(0))[1] > 90_000  # the first in a window, however large
        assert await it.fetch(0, replica_id=replica_id) == (10_000, 0)
        assert it.muted() == 1

    talk(tmp_path, scenario)


def test_what_tools_fetch_is_counted(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        for _ in range(20):
            await it.produce(10_000)
        await it.set_quota((CLIENT_ID, "app"), consumer_byte_rate=10_000)
        throttled, size = await it.fetch(0, replica_id=-2)
        assert (throttled, 50_000 < size <= 100_000) == (0, True)
        throttled, size = await it.fetch(0, replica_id=-2)
        assert (throttled > 0, size) == (True, 0)

    talk(tmp_path, scenario)


def test_brokers_are_not_throttled(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.produce(90_000)
        await it.set_quota((CLIENT_ID, None), consumer_byte_rate=1)
        async with WireClient.connected(it.server, f"broker-{it.server.id}") as broker:
            for _ in range(2):
                throttled, size = await it.fetch(0, broker, replica_id=-2)
                assert (throttled, size > 90_000) == (0, True)

    talk(tmp_path, scenario)


def test_client_id_of_a_broker_does_not_help_on_listeners_of_clients(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, None), producer_byte_rate=100)
        async with WireClient.connected(it.server, f"broker-{it.server.id}") as impostor:
            assert await it.produce(100_000, impostor) == 10_000

    talk(
        tmp_path,
        scenario,
        listeners="CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        listener_security_protocol_map="CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        inter_broker_listener_name="BROKERS",
    )


def test_client_id_of_a_broker_does_not_help_another_user_of_sasl(tmp_path: Path) -> None:
    jaas = (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="broker" password="secret" user_broker="secret" user_app="secret";'
    )

    async def scenario(it: Talk) -> None:
        (connection,) = it.server.connections._open
        context = RequestContext(
            it.server.services, 9, f"broker-{it.server.id}", "127.0.0.1", "BROKERS", 1, lambda: 1,
            connection._client,
        )  # fmt: skip
        for user, is_exempt in (("app", False), ("broker", True)):
            connection._client.principal = Principal("User", user)
            assert is_broker(context) is is_exempt

    talk(
        tmp_path,
        scenario,
        listeners="CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
        listener_security_protocol_map="CLIENTS:PLAINTEXT,BROKERS:SASL_PLAINTEXT",
        inter_broker_listener_name="BROKERS",
        sasl_enabled_mechanisms="PLAIN",
        sasl_mechanism_inter_broker_protocol="PLAIN",
        listener_name_brokers_plain_sasl_jaas_config=jaas,
    )


# Mutations


async def create(it: Talk, version: int, *topics: tuple[str, int], **fields: Any) -> Any:
    wanted = [
        {"name": name, "num_partitions": count, "replication_factor": 1} for name, count in topics
    ]
    return await it.client.call(CREATE_TOPICS, version, topics=wanted, timeout=60_000, **fields)


def test_topics_beyond_the_quota_are_refused(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, "app"), controller_mutation_rate=1)
        answer = await create(it, 7, ("a", 11), ("b", 3), ("c", 1))
        assert {topic.name: topic.error_code for topic in answer.topics} == {
            "a": ErrorCode.NONE,
            "b": ErrorCode.NONE,  # there are no tokens left, but no debt either
            "c": ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        }
        assert throttle_ms(answer) == 3000
        assert it.muted() == 1
        assert "c" not in it.server.metadata.image.topics
        it.unmute()
        it.clock.advance(3000)
        answer = await create(it, 7, ("c", 1))
        assert answer.topics[0].error_code == ErrorCode.NONE
        assert throttle_ms(answer) == 0

    talk(tmp_path, scenario)


def test_older_clients_are_only_throttled(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, "app"), controller_mutation_rate=1)
        answer = await create(it, 5, ("a", 11), ("b", 3), ("c", 1))
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.NONE}
        assert throttle_ms(answer) == 4000
        assert it.muted() == 1

    talk(tmp_path, scenario)


def test_what_fails_is_not_counted(tmp_path: Path) -> None:
    async def scenario(it: Talk) -> None:
        await it.set_quota((CLIENT_ID, "app"), controller_mutation_rate=1)
        for version in (7, 5):
            answer = await create(it, version, ("bad name!", 1000), ("t", 1000))
            assert throttle_ms(answer) == 0
        answer = await it.client.call(
            CREATE_PARTITIONS, 3, topics=[{"name": "absent", "count": 1000}], timeout=60_000
        )
        assert throttle_ms(answer) == 0
        assert throttle_ms(await create(it, 7, ("a", 11))) == 0

    talk(tmp_path, scenario)


@pytest.mark.parametrize(("version", "is_strict"), [(4, False), (6, True)])
def test_deletion_counts_partitions(tmp_path: Path, version: int, is_strict: bool) -> None:
    async def scenario(it: Talk) -> None:
        await it.server.topics.create([NewTopic("a", 13), NewTopic("b", 1)])
        await it.set_quota((CLIENT_ID, "app"), controller_mutation_rate=1)
        names = {"topic_names": ["a", "b"], "topics": [{"name": "a"}, {"name": "b"}]}
        answer = await it.client.call(DELETE_TOPICS, version, timeout=60_000, **names)
        codes = {answered.name: answered.error_code for answered in answer.responses}
        refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED if is_strict else ErrorCode.NONE
        assert codes == {"a": ErrorCode.NONE, "b": refused}
        assert throttle_ms(answer) == (2000 if is_strict else 3000)
        assert ("b" in it.server.metadata.image.topics) == is_strict

    talk(tmp_path, scenario)


@pytest.mark.parametrize(("version", "is_strict"), [(2, False), (3, True)])
def test_new_partitions_count(tmp_path: Path, version: int, is_strict: bool) -> None:
    async def scenario(it: Talk) -> None:
        await it.server.topics.create([NewTopic("a", 1), NewTopic("b", 1)])
        await it.set_quota((CLIENT_ID, "app"), controller_mutation_rate=1)
        wanted = [{"name": "a", "count": 14}, {"name": "b", "count": 2}]
        answer = await it.client.call(CREATE_PARTITIONS, version, topics=wanted, timeout=60_000)
        codes = {result.name: result.error_code for result in answer.results}
        refused = ErrorCode.THROTTLING_QUOTA_EXCEEDED if is_strict else ErrorCode.NONE
        assert codes == {"a": ErrorCode.NONE, "b": refused}
        assert throttle_ms(answer) == (2000 if is_strict else 3000)

    talk(tmp_path, scenario)
