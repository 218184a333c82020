"""The broker's periodic jobs, each seen at work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.replicas.pending import ACKS_ALL, ACKS_LEADER
from millstream.records.record import Record, encode_batch
from millstream.storage.retention import Candidate
from millstream.storage.steps import run_in_thread
from millstream.storage.truncation import truncate
from tests.broker.serving import serving


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that a job brings about; pytest's time-out is the limit."""
    while not condition():
        await asyncio.sleep(0.01)


def batch(now_ms: int, size_bytes: int = 100) -> bytes:
    return encode_batch([Record(0, now_ms, b"key", b"x" * size_bytes)])


def test_retention_deletes_what_is_too_much(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, log_retention_check_interval_ms=20) as broker:
            settings = {"retention.bytes": "1500", "internal.segment.bytes": "1024"}
            await broker.topics.create([NewTopic("t", 1, 1, settings=settings)])
            partition = broker.partitions.find("t", 0)
            for _ in range(20):
                partition.append(batch(broker.clock.now_ms(), 300), acks=ACKS_LEADER)
            await until(lambda: partition.log_start_offset > 10)
            assert partition.high_watermark == 20

    asyncio.run(main())


def test_flush_ms_flushes_what_has_waited_that_long(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path) as broker:
            await broker.topics.create([NewTopic("t", 1, 1, settings={"flush.ms": "10"})])
            partition = broker.partitions.find("t", 0)
            partition.append(batch(broker.clock.now_ms()), acks=ACKS_LEADER)
            assert partition.log.flushed_offset == 0
            await until(lambda: partition.log.flushed_offset == 1)

    asyncio.run(main())


def test_checkpoints_are_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, log_flush_offset_checkpoint_interval_ms=20) as broker:
            await broker.topics.create([NewTopic("t", 1, 1)])
            partition = broker.partitions.find("t", 0)
            partition.append(batch(broker.clock.now_ms()), acks=ACKS_LEADER)
            checkpoint = tmp_path / "replication-offset-checkpoint"
            await until(lambda: checkpoint.exists() and "t 0 1" in checkpoint.read_text())

    asyncio.run(main())


def test_silent_producers_are_forgotten(tmp_path: Path) -> None:
    settings = {
        "producer_id_expiration_ms": 1,
        "producer_id_expiration_check_interval_ms": 20,
    }

    async def main() -> None:
        async with serving(tmp_path, **settings) as broker:
            await broker.topics.create([NewTopic("t", 1, 1)])
            partition = broker.partitions.find("t", 0)
            records = [Record(0, broker.clock.now_ms(), None, b"x")]
            partition.append(
                encode_batch(records, producer_id=5, producer_epoch=0, base_sequence=0),
                acks=ACKS_LEADER,
            )
            assert len(partition.log.producers) == 1
            await until(lambda: len(partition.log.producers) == 0)

    asyncio.run(main())


def test_job_that_fails_is_logged_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serving(tmp_path, log_retention_check_interval_ms=10) as broker:
            await broker.topics.create([NewTopic("t", 1, 1)])
            partition = broker.partitions.find("t", 0)
            calls = []

            def fail() -> Candidate:
                calls.append(1)
                raise RuntimeError("no luck")

            partition.retention_candidate = fail  # type: ignore[method-assign]
            await until(lambda: len(calls) >= 2)
            del partition.retention_candidate

    asyncio.run(main())
    assert "background job failed: retention" in caplog.text


def test_closed_segments_are_synced_whatever_the_acks(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(tmp_path, log_flush_offset_checkpoint_interval_ms=20) as broker:
            settings = {"internal.segment.bytes": "1024"}
            await broker.topics.create([NewTopic("t", 1, 1, settings=settings)])
            partition = broker.partitions.find("t", 0)
            for _ in range(20):
                partition.append(batch(broker.clock.now_ms(), 300), acks=ACKS_LEADER)
            newest = partition.log.active_segment.base_offset
            await until(lambda: partition.log.recovery_point >= newest)
            checkpoint = tmp_path / "recovery-point-offset-checkpoint"
            await until(lambda: checkpoint.exists() and "t 0 20" in checkpoint.read_text())

    asyncio.run(main())


HOUSEKEEPING = {
    "log_retention_check_interval_ms": 20,
    "log_flush_offset_checkpoint_interval_ms": 20,
    "log_cleaner_backoff_ms": 20,
}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "1",
    "max.compaction.lag.ms": "100",
    "internal.segment.bytes": "1024",
}


def test_event_loop_waits_for_no_disk_while_the_broker_keeps_house(tmp_path: Path) -> None:
    """Twice: after a restart, timestamps and indexes have to be read. `serving` checks the loop."""

    async def keep_house() -> None:
        async with serving(tmp_path, **HOUSEKEEPING) as broker:
            shrinking = {"retention.bytes": "1500", "internal.segment.bytes": "1024"}
            if "compacted" not in broker.metadata.image.topics:
                await broker.topics.create([NewTopic("compacted", 1, 1, settings=COMPACTED)])
                await broker.topics.create([NewTopic("shrinking", 30, 1, settings=shrinking)])
            await broker.topics.create([NewTopic("short", 30, 1)])
            compacted = broker.partitions.find("compacted", 0)
            ends = [broker.partitions.find("shrinking", index) for index in range(30)]
            appends = []
            for number in range(20):
                data = batch(broker.clock.now_ms(), 300)
                appends += [partition.append(data, acks=ACKS_ALL) for partition in ends]
                appends.append(compacted.append(data, acks=ACKS_ALL))
                short = broker.partitions.find("short", number)
                appends.append(short.append(batch(broker.clock.now_ms(), 50_000), acks=ACKS_ALL))
            for append in appends:
                await append
            short.delete_records_before(1)
            await until(lambda: all(it.log_start_offset > it.high_watermark - 10 for it in ends))
            await until(lambda: compacted.log.size_bytes < 3_000)
            checkpoint = tmp_path / "recovery-point-offset-checkpoint"
            await until(lambda: "shrinking 29 " in checkpoint.read_text())
            await broker.topics.delete([broker.metadata.image.topics["short"].id])
            truncation = truncate(ends[0].log, ends[0].high_watermark - 1)
            await run_in_thread(truncation, asyncio.to_thread)

    asyncio.run(keep_house())
    asyncio.run(keep_house())
