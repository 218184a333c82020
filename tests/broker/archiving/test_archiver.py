"""Archiving goes on wherever it was interrupted: kill -9, a lost bucket, another leader."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import OffsetSpec

from millstream.archive.manifest import ArchiveError, Manifest, file_name, partition_path
from millstream.archive.places import open_place
from millstream.archive.reading import open_archive
from millstream.archive.verifying import verify_partition
from millstream.broker.archiving import planning
from millstream.broker.archiving.process import ArchiveProcess
from millstream.broker.embedded import Broker
from millstream.client.cluster import Cluster
from millstream.excision.documents import KEY, Selector
from millstream.excision.jobs import begin, finish
from millstream.excision.selection import Access, find_topic
from tests.archive.conftest import bucket, s3_server  # noqa: F401 - fixtures
from tests.broker.archiving.scenes import (
    archived_end,
    check_records,
    consume,
    create,
    keep_little,
    list_offset,
    local_start,
    manifests,
    produce,
    settings,
)
from tests.peers.cutting_proxy import cutting_proxy
from tests.peers.patience import PATIENCE_SECONDS, wait_until


def check_archive(path: str) -> int:
    """Everything is whole, and in it once. Returns the end."""
    part = open_archive(path).topic("orders").partitions[0]
    assert verify_partition(part).problems == []
    offsets = [it for rows in part.read() for it in rows.column("offset").to_pylist()]
    assert offsets == list(range(part.end_offset))
    return part.end_offset


@pytest.mark.slow
def test_nothing_is_lost_when_the_broker_is_killed(tmp_path: Path) -> None:
    """At random moments, while it archives and deletes."""
    random, archive = Random(46), tmp_path / "archive"
    broker = Broker.start(tmp_path / "data", settings(str(archive)), in_process=False)
    end = 0
    try:
        create(broker, local_retention_bytes=2000)
        for _ in range(4):
            produce(broker, end, end + 120)
            end += 120
            time.sleep(random.uniform(0, 0.4))
            broker.kill()
            if archived_end(archive):
                check_archive(str(archive))
            broker.restart()
            check_records(consume(broker, end), 0, end)
        wait_until(lambda: local_start(broker) > end // 2)
        check_records(consume(broker, end), 0, end)
    finally:
        broker.stop()
    assert check_archive(str(archive)) > end // 2
    # Manifests and files of earlier epochs are gone.
    assert len(manifests(archive)) == 1
    listed = {file["name"] for file in manifests(archive)[0]["files"]}
    assert {path.name for path in archive.rglob("*.parquet*")} == listed


def test_killed_archive_process_is_replaced(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with Broker.start(tmp_path / "data", settings(str(archive)), in_process=False) as broker:
        create(broker, local_retention_bytes=2000)
        produce(broker, 0, 150)
        wait_until(lambda: archived_end(archive) > 50)
        (child,) = [
            it
            for it in psutil.Process(_pid(broker)).children()
            if "archive.child" in it.cmdline()[2]
        ]
        os.kill(child.pid, signal.SIGKILL)
        produce(broker, 150, 300)
        wait_until(lambda: local_start(broker) > 200)
        check_records(consume(broker, 300), 0, 300)
    assert not psutil.pid_exists(child.pid) or child.status() == psutil.STATUS_ZOMBIE


def _pid(broker: Broker) -> int:
    runner = broker._runner
    assert runner is not None
    pid: int = runner.pid  # type: ignore[attr-defined]
    return pid


def test_archive_process_ends_with_a_killed_broker(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    broker = Broker.start(tmp_path / "data", settings(str(archive)), in_process=False)
    create(broker)
    produce(broker, 0, 150)
    wait_until(lambda: archived_end(archive) > 50)
    children = psutil.Process(_pid(broker)).children()
    assert children
    broker.kill()
    wait_until(lambda: not any(child.is_running() for child in children))


def test_archive_survives_the_loss_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    archive = tmp_path / "archive"
    with Broker.start(tmp_path / "data", settings(str(archive))) as broker:
        create(broker)
        produce(broker, 0, 150)
        wait_until(lambda: archived_end(archive) > 50)
    before = manifests(archive)[-1]
    shutil.rmtree(tmp_path / "data" / "orders-0")
    with Broker.start(tmp_path / "data", settings(str(archive))) as broker:
        wait_until(lambda: "and its log differ" in caplog.text)
        produce(broker, 0, 300)
        keep_little(broker)
        assert local_start(broker) == 0
    assert manifests(archive)[-1]["files"] == before["files"]
    check_archive(str(archive))


def test_lost_bucket_stops_archiving_and_nothing_else(
    tmp_path: Path,
    bucket: str,  # noqa: F811
    s3_server: str,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "millstream.archive")
    host, port = s3_server.split(":")
    with cutting_proxy(host, int(port)) as proxy:
        path = bucket.replace(s3_server, proxy.address)
        with Broker.start(tmp_path / "data", settings(path)) as broker:
            create(broker, local_retention_bytes=2000)
            produce(broker, 0, 150)
            wait_until(lambda: local_start(broker) > 50)
            check_records(consume(broker, 150), 0, 150)
            proxy.refuses = True
            proxy.cut()
            produce(broker, 150, 300)
            wait_until(lambda: "is not archived at the moment" in caplog.text)
            start = local_start(broker)
            check_records(consume(broker, 300, first=start), start, 300)
            proxy.refuses = False
            wait_until(lambda: local_start(broker) > 200)
            check_records(consume(broker, 300), 0, 300)
            assert "is archived again" in caplog.text
    assert open_place(bucket).list("orders")
    check_archive(bucket)


def test_excised_records_leave_the_archive_too(tmp_path: Path) -> None:
    """Those that were archived before, and those that are archived later."""
    archive = tmp_path / "archive"
    with Broker.start(tmp_path / "data", settings(str(archive))) as broker:
        create(broker)
        produce(broker, 0, 200)
        wait_until(lambda: archived_end(archive) > 100)
        cluster = Cluster(broker.bootstrap_servers)
        plan = find_topic(
            cluster, "orders", Selector(KEY, b"key3"), access=Access(broker.bootstrap_servers)
        )
        job = begin(cluster, [plan], Selector(KEY, b"key3"), requested_by="test")
        receipt = finish(cluster, job, timeout_seconds=PATIENCE_SECONDS)
        assert receipt.job.records == 40
        keep_little(broker)
        wait_until(lambda: local_start(broker) > 100)
        shown = consume(broker, 200)
        assert [it.offset() for it in shown] == [it for it in range(200) if it % 5 != 3]
        produce(broker, 200, 240)
        wait_until(lambda: archived_end(archive) >= 200)
        cluster.close()
    part = open_archive(str(archive)).topic("orders").partitions[0]
    assert verify_partition(part).problems == []
    keys = [it for rows in part.read(end_offset=200) for it in rows.column("key").to_pylist()]
    assert keys
    assert b"key3" not in keys


def test_backlog_of_one_partition_does_not_hold_up_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their manifests are loaded meanwhile, and their turn comes after each file."""
    monkeypatch.setattr(planning, "FILE_BYTES_MAX", 1)
    topics, written, may_go_on = ("orders", "returns"), [], threading.Event()
    write = ArchiveProcess.write

    def failing(*_: object, **__: object) -> Manifest:
        raise ArchiveError("not now")

    def waiting(self: ArchiveProcess, manifest: Manifest, *rest: Any, **more: Any) -> Manifest:
        written.append(manifest.topic)
        assert may_go_on.wait(PATIENCE_SECONDS)
        return write(self, manifest, *rest, **more)

    archive = str(tmp_path / "archive")
    with monkeypatch.context() as patched:
        patched.setattr(ArchiveProcess, "write", failing)
        with Broker.start(tmp_path / "data", settings(archive)) as broker:
            for topic in topics:
                create(broker, topic)
                produce(broker, 0, 200, topic)
    monkeypatch.setattr(ArchiveProcess, "write", waiting)
    with Broker.start(tmp_path / "data", settings(archive)) as broker:
        try:
            wait_until(lambda: written)
            for topic in topics:
                assert list_offset(broker, OffsetSpec.earliest(), topic) == 0
            assert len(written) == 1
        finally:
            may_go_on.set()
        wait_until(lambda: min(archived_end(archive, it) for it in topics) > 100)
    assert sorted(written[:2]) == sorted(written[2:4]) == sorted(topics)


def test_failed_upload_is_cleaned_up_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "archive"
    write, failures = ArchiveProcess.write, iter(range(2))

    def failing(self: ArchiveProcess, manifest: Manifest, *rest: Any, **more: Any) -> Manifest:
        if manifest.files and next(failures, None) is not None:
            directory = archive / partition_path("orders", manifest.topic_id, 0)
            (directory / (file_name(5, 6, manifest.leader_epoch) + ".0a.tmp")).write_bytes(b"half")
            raise ArchiveError("not now")
        return write(self, manifest, *rest, **more)

    monkeypatch.setattr(ArchiveProcess, "write", failing)
    with Broker.start(tmp_path / "data", settings(str(archive))) as broker:
        create(broker)
        produce(broker, 0, 100)
        wait_until(lambda: archived_end(archive))
        produce(broker, 100, 200)
        wait_until(lambda: next(failures, None) is None and archived_end(archive) > 120)
        wait_until(lambda: not list(archive.rglob("*.tmp")))
