"""A broker writes to a topic of its own, with its settings, also after its deletion."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream.broker.peers.topic_writer import TopicWriter
from millstream.records.batch import iterate_headers
from millstream.records.record import decode_batch
from tests.broker.serving import serving


def test_topic_is_created_and_created_again_after_its_deletion(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as broker:
            writer = TopicWriter("notes", broker.services, {"cleanup.policy": "compact"})
            await writer.write([(b"a", b"1"), (b"b", b"2")])
            await writer.write([(b"b", b"3")])
            log = broker.partitions.find("notes", 0).log
            assert log.config.compact
            data = await asyncio.to_thread(
                log.read, 0, max_bytes=1_000_000, end_offset=log.log_end_offset, may_block=True
            )
            found = [it for at, _ in iterate_headers(data) for it in decode_batch(data, at)]
            assert [(it.key, it.value) for it in found] == [
                (b"a", b"1"),
                (b"b", b"2"),
                (b"b", b"3"),
            ]
            await broker.actions.delete_topics([log.topic_id])
            await writer.write([(b"c", b"4")])
            assert broker.partitions.find("notes", 0).log.log_end_offset == 1

    asyncio.run(main())
