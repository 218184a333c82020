"""A request that has a template is answered as if it had been read in full."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.handlers.produce import produce
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.replicas.produce_templates import TEMPLATES_MAX, ProduceTemplates
from millstream.broker.services import Client
from millstream.errors import ErrorCode
from millstream.protocol.produce import decode_produce_request
from millstream.records.record import Record, encode_batch
from tests.broker.serving import serving
from tests.broker.sharing.leading import Leader
from tests.protocol.kio_messages import kio_request, kio_response

SENDER = (None, "PLAINTEXT")


def body_of(
    version: int,
    records: bytes,
    *,
    acks: int = 1,
    transactional_id: str | None = None,
    **topic: Any,
) -> bytes:
    data = [{"index": 0, "records": records}]
    fields = {
        "transactional_id": transactional_id,
        "acks": acks,
        "topic_data": [{**topic, "partition_data": data}],
    }
    return kio_request("produce", version, fields)


@pytest.mark.parametrize("version", range(3, 14))
def test_answers_are_the_same_in_a_template_and_without(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as broker:
            await broker.topics.create([NewTopic("topic", 1, 1)])
            context: Any = SimpleNamespace(
                services=broker.services,
                api_version=version,
                client_id=None,
                listener="PLAINTEXT",
                client=Client(),
            )
            batch = Leader().batch(b"value" * 100)
            topic_id = broker.metadata.image.topics["topic"].id
            body = body_of(version, batch, name="topic", topic_id=topic_id)
            assert broker.services.produce_templates.find(version, SENDER, body) is None
            answers = [produce(context, memoryview(body)) for _ in range(3)]
            assert broker.services.produce_templates.find(version, SENDER, body) is not None
            for offset, answer in enumerate(answers):
                assert isinstance(answer, bytes)
                (topic,) = kio_response("produce", version, answer).responses
                (partition,) = topic.partition_responses
                assert (partition.error_code, partition.base_offset) == (0, offset)

    asyncio.run(main())


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_template_refuses_records_and_forgets_a_deleted_topic(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as broker:
            await broker.topics.create([NewTopic("topic", 1, 1)])
            context: Any = SimpleNamespace(
                services=broker.services,
                api_version=version,
                client_id=None,
                listener="PLAINTEXT",
                client=Client(),
            )
            batch = Leader().batch(b"value")
            topic_id = broker.metadata.image.topics["topic"].id

            def error_of(records: bytes) -> int:
                body = body_of(version, records, name="topic", topic_id=topic_id)
                answer = produce(context, memoryview(body))
                assert isinstance(answer, bytes)
                (topic,) = kio_response("produce", version, answer).responses
                return int(topic.partition_responses[0].error_code)

            assert error_of(batch) == ErrorCode.NONE
            assert error_of(batch[:-1] + b"?") == ErrorCode.CORRUPT_MESSAGE
            assert error_of(b"") == ErrorCode.INVALID_RECORD
            assert len(broker.services.produce_templates) == 1
            await broker.topics.delete([topic_id])
            assert len(broker.services.produce_templates) == 0
            gone = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert error_of(batch) == (gone if version < 13 else ErrorCode.UNKNOWN_TOPIC_ID)

    asyncio.run(main())


@pytest.mark.parametrize("other", [("someone", "PLAINTEXT"), ("__admin_client", "PUBLIC")])
def test_template_serves_its_own_sender_only(other: tuple[str, str], tmp_path: Path) -> None:
    """The one client id that may write to internal topics opens them to nobody else."""

    async def main() -> None:
        async with serving(tmp_path) as broker:
            await broker.topics.auto_create(["__consumer_offsets"])
            body = body_of(
                9, encode_batch([Record(0, 0, b"key", b"value")]), name="__consumer_offsets"
            )
            admin = ("__admin_client", "PLAINTEXT")

            def error_for(client_id: str, listener: str) -> int:
                context: Any = SimpleNamespace(
                    services=broker.services,
                    api_version=9,
                    client_id=client_id,
                    listener=listener,
                    client=Client(),
                )
                answer = produce(context, memoryview(body))
                assert isinstance(answer, bytes)
                (topic,) = kio_response("produce", 9, answer).responses
                return int(topic.partition_responses[0].error_code)

            assert error_for(*admin) == ErrorCode.NONE
            assert broker.services.produce_templates.find(9, admin, body) is not None
            assert broker.services.produce_templates.find(9, other, body) is None
            expected = ErrorCode.NONE if other[0] == admin[0] else ErrorCode.INVALID_TOPIC_EXCEPTION
            assert error_for(*other) == expected

    asyncio.run(main())


def without_transaction(records: bytes) -> bytes:
    return records[:22] + bytes([records[22] & ~0x10]) + records[23:]


@given(
    version=st.integers(3, 12),
    records=st.binary(min_size=61, max_size=40_000).map(without_transaction),
    name=st.text("abc", min_size=1, max_size=20),
)
def test_template_finds_the_records_where_the_decoder_does(
    version: int, records: bytes, name: str
) -> None:
    async def main() -> None:
        leader = Leader()
        leader.partition(name)
        templates = ProduceTemplates()
        body = body_of(version, records, name=name)
        templates.learn(
            version, SENDER, body, decode_produce_request(body, version), leader.partitions
        )
        template = templates.find(version, SENDER, body)
        assert template is not None
        assert template.records_of(body) == records
        assert template.records_of(body + b"\0") is None
        assert template.records_of(body[:-1]) is None

    asyncio.run(main())


@given(
    version=st.integers(3, 12),
    transactional_id=st.text("xyz", max_size=300),
    name=st.text("abc", min_size=1, max_size=20),
)
def test_template_of_a_transaction_takes_batches_while_that_is_open(
    version: int, transactional_id: str, name: str
) -> None:
    async def main() -> None:
        leader = Leader()
        partition = leader.partition(name)
        templates = ProduceTemplates()
        batch = leader.batch(
            b"a", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        body = body_of(version, batch, name=name, transactional_id=transactional_id)
        await partition.append(batch, acks=-1, verified=True)
        templates.learn(
            version, SENDER, body, decode_produce_request(body, version), leader.partitions
        )
        template = templates.find(version, SENDER, body)
        if template is None:
            assert len(transactional_id) > 126, "only a long one is read in full every time"
            return
        assert template.records_of(body) == batch
        await partition.append_marker(
            producer_id=7,
            producer_epoch=0,
            coordinator_epoch=0,
            committed=True,
            transaction_version=1,
        )
        assert template.records_of(body) is None

    asyncio.run(main())


def test_template_without_transactional_id_takes_no_transactional_batch() -> None:
    async def main() -> None:
        leader = Leader()
        partition = leader.partition("topic")
        templates = ProduceTemplates()
        plain = leader.batch(b"a")
        batch = leader.batch(
            b"a", producer_id=7, producer_epoch=0, base_sequence=0, is_transactional=True
        )
        await partition.append(batch, acks=-1, verified=True)
        body = body_of(9, plain, name="topic")
        templates.learn(9, SENDER, body, decode_produce_request(body, 9), leader.partitions)
        template = templates.find(9, SENDER, body)
        assert template is not None
        assert template.records_of(body) == plain
        assert template.records_of(body_of(9, batch, name="topic")) is None
        assert template.records_of(body_of(9, plain[:40], name="topic")) is None

    asyncio.run(main())


@pytest.mark.parametrize("version", [3, 9])
def test_nothing_is_kept_of_long_ids(version: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as broker:
            await broker.topics.create([NewTopic("topic", 1, 1)])
            templates, batch = broker.services.produce_templates, Leader().batch(b"value")
            ids = [("c" * 30_000, None), (None, "t" * 30_000), ("c" * 200, "t" * 100)]
            for count, (client_id, transactional_id) in zip((0, 0, 1), ids, strict=True):
                body = body_of(version, batch, name="topic", transactional_id=transactional_id)
                request = decode_produce_request(body, version)
                sender = (client_id, "PLAINTEXT")
                templates.learn(version, sender, body, request, broker.partitions)
                assert len(templates) == count

    asyncio.run(main())


def test_templates_are_bounded() -> None:
    assert TEMPLATES_MAX <= 2**16
