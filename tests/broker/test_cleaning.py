"""The cleaner's thread compacts while the broker serves, and ends with it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from millstream.broker.partition import ACKS_LEADER
from millstream.broker.topics import NewTopic
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

    threads_before = set(threading.enumerate())  # among them, those of the session's broker
    asyncio.run(main())
    left = {thread.name for thread in threading.enumerate() if thread not in threads_before}
    assert "millstream-cleaner" not in left


def test_cleaner_can_be_switched_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, log_cleaner_enable=False):
            names = {thread.name for thread in threading.enumerate()}
            assert "millstream-cleaner" not in names

    asyncio.run(main())
