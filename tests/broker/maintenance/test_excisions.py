"""A broker removes what a topic's setting names, and reports it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from millstream.broker.maintenance.excisions import TOPIC
from millstream.broker.metadata.configs import Change, Operation
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.replicas.pending import ACKS_ALL
from millstream.broker.server import BrokerServer
from millstream.coordination.cluster import Resource, ResourceType
from millstream.records.batch import iterate_headers
from millstream.records.record import Record, decode_batch, encode_batch
from tests.broker.serving import serving

SECRET = b"alice@example.org"
WANTED = {"millstream.excised.offsets": "0:1+3"}


async def fill(broker: BrokerServer, settings: dict[str, str] | None = None) -> None:
    await broker.topics.create([NewTopic("t", 1, 1, settings=settings or {})])
    partition = broker.partitions.find("t", 0)
    for number in range(5):
        value = SECRET if number in (1, 3) else b"other"
        record = Record(0, broker.clock.now_ms(), b"%d" % number, value)
        await partition.append(encode_batch([record]), acks=ACKS_ALL)


async def records_of(broker: BrokerServer, topic: str) -> list[Record]:
    log = broker.partitions.find(topic, 0).log
    data = await asyncio.to_thread(
        log.read, 0, max_bytes=1_000_000, end_offset=log.log_end_offset, may_block=True
    )
    return [it for at, _ in iterate_headers(data) for it in decode_batch(data, at)]


async def want(broker: BrokerServer, offsets: str) -> None:
    resource = Resource(ResourceType.TOPIC, "t")
    changes = [Change("millstream.excised.offsets", Operation.SET, offsets)]
    outcomes = await broker.actions.alter_configs({resource: changes}, validate_only=False)
    assert outcomes == {resource: None}


async def report(broker: BrokerServer) -> dict[str, Any]:
    """The report of the last look at t, once there is one."""
    while True:
        if TOPIC in broker.metadata.image.topics:
            for record in await records_of(broker, TOPIC):
                if record.key is not None and record.key.startswith(b"replica/"):
                    fields: dict[str, Any] = json.loads(record.value or b"")
                    return fields
        await asyncio.sleep(0.02)


def test_records_are_removed_and_reported(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as broker:
            await fill(broker)
            await want(broker, "0:1+3")
            found = await report(broker)
            assert [it.offset for it in await records_of(broker, "t")] == [0, 2, 4]
            assert found["removed"] == found["offsets"] == "1+3"
            assert found["isComplete"]
            assert found["topicId"] == str(broker.partitions.find("t", 0).log.topic_id)
            assert [it["baseOffset"] for it in found["segments"]] == [0]
        assert files_with(tmp_path, SECRET) == []

    asyncio.run(main())


def test_broker_that_was_away_removes_them_after_its_start(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as broker:
            await fill(broker, WANTED)  # stopped before it looks for the first time
        async with serving(tmp_path) as broker:
            assert (await report(broker))["removedRecords"] == 2
            assert [it.offset for it in await records_of(broker, "t")] == [0, 2, 4]

    asyncio.run(main())


def test_records_are_removed_while_compaction_is_switched_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, log_cleaner_enable=False) as broker:
            await fill(broker, WANTED)
            assert (await report(broker))["removedRecords"] == 2

    asyncio.run(main())


def files_with(directory: Path, needle: bytes) -> list[str]:
    return [it.name for it in directory.rglob("*") if it.is_file() and needle in it.read_bytes()]
