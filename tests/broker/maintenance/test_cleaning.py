"""The cleaner's thread compacts while the broker serves, and ends with it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.replicas.pending import ACKS_LEADER
from millstream.records.record import Record, encode_batch
from tests.broker.serving import serving


def test_compacted_topic_is_compacted_in_the_background(tmp_path: Path) -> None:
    settings = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "internal.segment.bytes": "1024",
    }

    async def main() -> None:
        async with serving(tmp_path, log_cleaner_backoff_ms=20) as broker:
            await broker.topics.create([NewTopic("t", 1, 1, settings=settings)])
            partition = broker.partitions.find("t", 0)
            for number in range(60):
                record = Record(0, broker.clock.now_ms(), b"%d" % (number % 3), b"x" * 100)
                partition.append(encode_batch([record]), acks=ACKS_LEADER)

            size_before = partition.log.size_bytes
            while partition.log.size_bytes > size_before / 2:
                await asyncio.sleep(0.01)
            assert partition.high_watermark == 60
            assert partition.log_start_offset == 0

    cleaners_before = cleaner_threads()  # that of the session's broker, if there is one
    asyncio.run(main())
    assert cleaner_threads() == cleaners_before


def test_cleaner_can_be_switched_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, log_cleaner_enable=False):
            assert cleaner_threads() == cleaners_before

    cleaners_before = cleaner_threads()
    asyncio.run(main())


def cleaner_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "millstream-cleaner"}
