"""The metadata's home in a log: durable before visible, compared and set, short by snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import threading
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from millstream.broker.metadata.actions import PRODUCER_ID_BLOCK
from millstream.broker.metadata.local import LocalMetadata
from millstream.broker.metadata.store import METADATA_TOPIC
from millstream.broker.metadata.topics import NewTopic
from millstream.coordination.cluster import ClusterImage, ResourceType
from millstream.coordination.cluster_features import INITIAL_FEATURES
from millstream.coordination.cluster_records import (
    BeginTransactionRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    encode_record,
)
from millstream.errors import ApiError, ErrorCode, StorageError
from millstream.records.batch import parse_header
from millstream.records.record import Record, encode_batch
from millstream.storage.directories import LogDirectories
from millstream.testing.clock import ManualClock
from tests.broker.metadata.homes import DecidedTooLate, Home, decided_on, home


def setting(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(ResourceType.GROUP, "g", name, value)


def test_new_metadata_have_the_initial_features(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        assert it.image.features == INITIAL_FEATURES


def test_features_of_a_newer_version_are_finalized_when_older_metadata_are_opened(
    tmp_path: Path,
) -> None:
    with home(tmp_path) as it:
        known = {"metadata.version": 30, "group.version": 1}
        it.metadata._image = replace(it.image, features=known)
        it.metadata._snapshot()  # as the older version left it
    with home(tmp_path) as it:
        assert it.image.features == INITIAL_FEATURES


def test_feature_that_was_switched_off_stays_off_after_a_restart(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        off = FeatureLevelRecord("transaction.version", 0)
        asyncio.run(it.metadata.change(decided_on(it.image.version, off)))
        it.metadata._snapshot()
    with home(tmp_path) as it:
        assert it.image.features["transaction.version"] == 0


def test_commits_survive_a_restart(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        asyncio.run(it.register())
        asyncio.run(it.topics.create([NewTopic("t", 3)]))
        before = it.image
    with home(tmp_path) as it:
        assert it.image == before


def test_commits_survive_a_crash(tmp_path: Path) -> None:
    """A commit is flushed before it returns, so nothing has to be closed to keep it."""
    with contextlib.suppress(RuntimeError), home(tmp_path) as it:
        asyncio.run(it.topics.create([NewTopic("t", 3)]))
        before = it.image
        raise RuntimeError("crash")
    with home(tmp_path) as it:
        assert it.image == before


def test_commit_on_another_version_is_refused(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        version = it.image.version
        asyncio.run(it.metadata.change(decided_on(version, setting("a", "1"))))
        with pytest.raises(DecidedTooLate):
            asyncio.run(it.metadata.change(decided_on(version, setting("a", "2"))))
        assert it.image.config(ResourceType.GROUP, "g") == {"a": "1"}


def test_decisions_made_together_see_each_other(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        seen: list[int] = []
        version = it.image.version

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            seen.append(image.version)
            return [setting("a", str(image.version))]

        async def scenario() -> None:
            await asyncio.gather(it.metadata.change(decide), it.metadata.change(decide))

        asyncio.run(scenario())
        assert seen == [version, version + 1]
        assert it.image.config(ResourceType.GROUP, "g") == {"a": str(version + 1)}


def test_commit_of_a_caller_that_is_cancelled_is_visible_once_it_is_durable(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        fs = it.directories.directories[0].fs
        released = threading.Event()
        version = it.image.version

        def wait(fd: int) -> None:
            released.wait()
            os.fdatasync(fd)

        async def scenario() -> None:
            task = asyncio.ensure_future(it.metadata.change(decided_on(version, setting("a", "1"))))
            while it.directories.logs[METADATA_TOPIC, 0].log_end_offset == version + 1:
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert it.image.version == version
            released.set()
            await it.metadata.close()
            assert it.image.version == version + 1

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fs, "fdatasync", wait)
            asyncio.run(scenario())


def test_subscribers_hear_of_a_commit_before_it_returns(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        heard: list[tuple[int, int]] = []
        version = it.image.version
        it.metadata.subscribe(lambda before, now: heard.append((before.version, now.version)))
        asyncio.run(it.metadata.change(decided_on(version, setting("a", "1"), setting("b", "1"))))
        assert heard == [(version, version + 2)]


def test_commit_does_not_wait_for_the_subscribers_of_another(tmp_path: Path) -> None:
    with home(tmp_path) as it:

        async def scenario() -> None:
            unfinished = asyncio.get_running_loop().create_future()
            waits = iter([unfinished])
            it.metadata.subscribe(lambda before, now: next(waits, None))
            version = it.image.version
            first = asyncio.ensure_future(
                it.metadata.change(decided_on(version, setting("a", "1")))
            )
            while it.image.version == version:
                await asyncio.sleep(0)
            await it.actions.allocate_producer_ids()
            assert not first.done()
            unfinished.set_result(None)
            await first

        asyncio.run(scenario())


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        first = asyncio.run(it.actions.allocate_producer_ids())
        second = asyncio.run(it.actions.allocate_producer_ids())
    with home(tmp_path) as it:
        third = asyncio.run(it.actions.allocate_producer_ids())
    assert [block.start for block in (first, second, third)] == [
        0,
        PRODUCER_ID_BLOCK,
        2 * PRODUCER_ID_BLOCK,
    ]


def test_log_stays_short_by_snapshots(tmp_path: Path) -> None:
    with home(tmp_path, snapshot_bytes=2_000) as it:
        for number in range(200):
            asyncio.run(it.metadata.change(decided_on(it.image.version, setting("a", str(number)))))
        log = it.directories.logs[METADATA_TOPIC, 0]
        assert log.size_bytes < 4_000
        assert log.log_start_offset > 100
        before = it.image
    snapshots = list((tmp_path / "__cluster_metadata-0").glob("*.checkpoint"))
    assert len(snapshots) == 1
    with home(tmp_path) as it:
        assert it.image == before


def test_log_that_is_mostly_history_is_shortened_at_a_clean_stop(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        asyncio.run(it.register())
        asyncio.run(it.topics.auto_create(["__consumer_offsets"]))
        asyncio.run(it.topics.create([NewTopic("t", 2_000)]))
        asyncio.run(it.topics.delete([it.image.topics["t"].id]))
        asyncio.run(it.metadata.close())
        assert it.directories.logs[METADATA_TOPIC, 0].size_bytes == 0
    with home(tmp_path) as it:
        assert it.image.topics.keys() == {"__consumer_offsets"}
        assert it.image.brokers[1].fenced


def test_failed_flush_refuses_the_commit_and_all_that_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with home(tmp_path) as it:
        before = it.image

        def fail(fd: int) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(it.directories.directories[0].fs, "fdatasync", fail)
        for _ in range(2):
            with pytest.raises(ApiError) as caught:
                asyncio.run(it.metadata.change(decided_on(before.version, setting("a", "1"))))
            assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
            monkeypatch.undo()  # a later sync would succeed, and must not be trusted
        assert it.image is before


def test_lost_metadata_are_rebuilt_from_the_logs(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        topic_id = uuid.uuid4()
        it.directories.create("t", 1, topic_id, it.configs.topic("t"))
    shutil.rmtree(tmp_path / "__cluster_metadata-0")
    with home(tmp_path) as it:
        topic = it.image.topics["t"]
        assert topic.id == topic_id
        assert [partition.leader for partition in topic.partitions] == [1, 1]


def test_metadata_in_a_failed_directory_are_not_begun_anew(tmp_path: Path) -> None:
    with home(tmp_path / "a", tmp_path / "b"):
        pass
    directories = LogDirectories.open([tmp_path / "a", tmp_path / "b"])
    try:
        del directories.logs[METADATA_TOPIC, 0]  # as if its directory could not be read
        directories.directories[0].fail(OSError(5, "Input/output error"))
        with pytest.raises(StorageError, match="no working log directory contains"):
            LocalMetadata.open(directories, ManualClock(), snapshot_bytes=1 << 20)
    finally:
        directories.abandon()


def test_broker_is_fenced_at_a_clean_stop_and_leads_again(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        asyncio.run(it.register())
        asyncio.run(it.metadata.close())
        assert it.image.brokers[1].fenced
    with home(tmp_path) as it:
        asyncio.run(it.register())
        assert not it.image.brokers[1].fenced


def test_transaction_that_kafka_left_open_is_aborted(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        append(it, [setting("a", "1"), BeginTransactionRecord("n"), setting("b", "1")])
    for _ in range(2):
        with home(tmp_path) as it:
            assert it.image.config(ResourceType.GROUP, "g").keys() - {"c"} == {"a"}
            asyncio.run(it.metadata.change(decided_on(it.image.version, setting("c", "1"))))
    with home(tmp_path) as it:
        assert it.image.config(ResourceType.GROUP, "g").keys() == {"a", "c"}


def append(it: Home, records: list[MetadataRecord]) -> None:
    """As Kafka would: nobody here applies it."""
    batch = encode_batch(
        [Record(index, 0, None, encode_record(record)) for index, record in enumerate(records)]
    )
    log = it.directories.logs[METADATA_TOPIC, 0]
    log.append(batch, [parse_header(batch)], leader_epoch=1, now_ms=0)
