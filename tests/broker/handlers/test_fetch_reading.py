"""How large a response to a Fetch may be."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream.broker.handlers._fetch_reading import QUIET_AFTER_MS
from millstream.broker.metadata.topics import NewTopic
from tests.broker.handlers.test_fetch import FETCH, PRODUCE, fields, partition_of
from tests.broker.serving import WireClient, serving
from tests.peers.wire import batch, produce_fields


def test_answers_are_larger_while_nobody_produces(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await server.topics.create([NewTopic("t", 1)])
            records = batch([b"x" * 900_000])
            produced = produce_fields("t", records)
            for _ in range(6):
                await client.call(PRODUCE, 3, **produced)
            asked = fields("t", {0: 0}, partition_max_bytes=2**30)
            # Flushes may have taken long.
            server.services.load.last_produce_ms = server.clock.monotonic_ms()
            answer = await client.call(FETCH, 11, **asked)
            assert len(partition_of(answer).records) == len(records)
            server.services.load.last_produce_ms -= QUIET_AFTER_MS
            answer = await client.call(FETCH, 11, **asked)
            assert len(partition_of(answer).records) == 4 * len(records)

    asyncio.run(scenario())


def test_response_is_smaller_while_other_clients_do_not_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, WireClient.connected(server) as client:
            await server.topics.create([NewTopic("t", 1)])
            for _ in range(8):
                await client.call(PRODUCE, 9, **produce_fields("t", batch([b"x" * 50_000])))
            partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 2**30}
            wanted = {
                "max_bytes": 2**30,
                "min_bytes": 1,
                "session_epoch": -1,
                "topics": [{"topic": "t", "partitions": [partition]}],
            }
            server.connections.response_memory.add(2**30)
            short = await client.call(FETCH, 11, **wanted)
            server.connections.response_memory.add(-(2**30))
            whole = await client.call(FETCH, 11, **wanted)
            assert 50_000 < len(short.responses[0].partitions[0].records) < 100_000
            assert len(whole.responses[0].partitions[0].records) > 400_000

    asyncio.run(scenario())
