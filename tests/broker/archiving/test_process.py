"""The archive process: its death and its silence cost a request, nothing else."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from millstream.archive.manifest import ArchiveError, ArchiveFenced, Manifest
from millstream.broker.archiving import process as module
from millstream.broker.archiving.process import ArchiveProcess
from millstream.errors import CorruptBatch
from tests.archive.scenes import START_MS, TOPIC_ID, batches, new_manifest
from tests.peers.patience import wait_until


@contextmanager
def running(path: str | Path) -> Iterator[ArchiveProcess]:
    process = ArchiveProcess(str(path))
    try:
        yield process
    finally:
        process.stop()


def write(
    process: ArchiveProcess, manifest: Manifest, path: Path, first: int, end: int
) -> Manifest:
    path.write_bytes(batches(first, end))
    with path.open("rb") as file:
        segments = [(file.fileno(), path.stat().st_size)]
        return process.write(manifest, first, end, [], segments, archived_ms=7, last_epoch=2)


def test_process_starts_with_the_first_request_and_ends_with_the_broker(tmp_path: Path) -> None:
    process = ArchiveProcess(str(tmp_path / "archive"))
    assert process.pid is None
    assert process.load("orders", TOPIC_ID, 0) is None
    assert process.pid is not None
    process.stop()
    assert process.pid is None
    with pytest.raises(ArchiveError, match="is stopping"):
        process.load("orders", TOPIC_ID, 0)


def test_requests_do_what_they_say(tmp_path: Path) -> None:
    with running(tmp_path / "archive") as process:
        manifest = write(process, new_manifest(), tmp_path / "a", 0, 100)
        manifest = write(process, manifest, tmp_path / "b", 100, 150)
        assert process.load("orders", TOPIC_ID, 0) == manifest
        assert [file.archived_ms for file in manifest.files] == [7, 7]
        assert process.read(manifest, manifest.files[1], 100, 10**6) == (batches(100, 150), [])
        found = process.find(manifest, manifest.files[0], START_MS + 500, 0)
        assert found == (50, START_MS + 500, 2)
        assert process.find(manifest, manifest.files[0], START_MS * 2, 0) is None
        after = manifest.starting_at(100)
        process.save(after, [manifest.files[0].name])
        assert process.clean_up(after) == []
        assert process.load("orders", TOPIC_ID, 0) == after
        later = after.led_in(7)
        process.save(later, ())
        with pytest.raises(ArchiveFenced):
            process.save(after, ())
        (tmp_path / "c").write_bytes(bytes(100))
        with (tmp_path / "c").open("rb") as file, pytest.raises(CorruptBatch):
            process.write(later, 150, 160, [], [(file.fileno(), 100)], archived_ms=7, last_epoch=2)


def test_killed_process_is_started_again(tmp_path: Path) -> None:
    with running(tmp_path / "archive") as process:
        manifest = write(process, new_manifest(), tmp_path / "a", 0, 100)
        before = process.pid
        assert before is not None
        os.kill(before, signal.SIGKILL)
        results: list[Manifest | None] = []

        def load() -> bool:
            with suppress(ArchiveError):
                results.append(process.load("orders", TOPIC_ID, 0))
            return bool(results)

        wait_until(load)
        assert results == [manifest]
        assert process.pid not in (None, before)


def test_several_threads_are_served(tmp_path: Path) -> None:
    with running(tmp_path / "archive") as process:
        manifest = write(process, new_manifest(), tmp_path / "a", 0, 100)
        found: list[bytes] = []

        def read() -> None:
            found.append(bytes(process.read(manifest, manifest.files[0], 0, 10**6)[0]))

        threads = [threading.Thread(target=read) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [batches(0, 100)] * 12


def test_bucket_that_does_not_answer_costs_only_the_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "READ_SECONDS_MAX", 0.5)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        path = f"s3://bucket/x?endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1"
        with running(path) as process:
            manifest = new_manifest()
            file = write_nowhere()
            for _ in range(2):
                with pytest.raises(ArchiveError, match="did not answer within"):
                    process.read(manifest, file, 0, 100)


def write_nowhere() -> module.ArchivedFile:
    from tests.archive.test_manifest import entry

    return entry(0, 100)


def test_upload_that_takes_too_long_is_not_finished_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would save its manifest over that of a later one."""
    with running(tmp_path / "archive") as process:
        manifest = write(process, new_manifest(), tmp_path / "a", 0, 100)
        before = process.pid
        assert before is not None
        os.kill(before, signal.SIGSTOP)  # as if the storage did not answer
        wait_until(lambda: psutil.Process(before).status() == psutil.STATUS_STOPPED)
        monkeypatch.setattr(module, "WRITE_SECONDS_MAX", 0.2)
        with pytest.raises(ArchiveError, match="did not answer within"):
            write(process, manifest, tmp_path / "b", 100, 150)
        assert process.pid is None
        monkeypatch.undo()
        assert write(process, manifest, tmp_path / "b", 100, 200).end_offset == 200
        assert process.pid not in (None, before)
