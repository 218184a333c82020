"""Disks that fill up, cannot be written or grow no further: a clear error, others undisturbed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, start_millstream
from tests.peers.small_disk import small_tmpfs
from tests.peers.wire import Wire, batch, produce_fields

KAFKA_STORAGE_ERROR = 56
DISK_BYTES = 16 * 1024 * 1024


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that is soon full."""
    with small_tmpfs(tmp_path / "small", DISK_BYTES) as disk:
        yield disk


def create(server: Server, *names: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    for created in admin.create_topics(
        [NewTopic(name, 1, 1, config=config) for name in names]
    ).values():
        created.result(PATIENCE_SECONDS)


def produce(wire: Wire, topic: str, records: bytes) -> Any:
    answer = wire.call("produce", 9, **produce_fields(topic, records))
    return answer.responses[0].partition_responses[0]


def fill(wire: Wire, topic: str, size_max: int) -> tuple[int, Any]:
    """Produce until the first refusal; how many batches were taken, and what it says."""
    records = batch([b"x" * 500_000])
    for count in range(size_max // len(records) + 2):
        answer = produce(wire, topic, records)
        if answer.error_code != 0:
            return count, answer
    raise AssertionError("the disk never filled up")


def test_full_disk_takes_down_only_its_own_partitions(tmp_path: Path, small_disk: Path) -> None:
    """Two log directories, one of them on the small disk: the other one's topics go on."""
    roomy = tmp_path / "roomy"
    roomy.mkdir()
    server = start_millstream(tmp_path / "data", {"log.dirs": f"{roomy},{small_disk / 'logs'}"})
    try:
        names = [f"topic-{number}" for number in range(4)]
        create(server, *names)
        with Wire(server.bootstrap) as wire:  # a topic's directory comes with its first record
            assert all(produce(wire, it, batch([b"x"])).error_code == 0 for it in names)
        on_small = {path.name.rpartition("-")[0] for path in (small_disk / "logs").glob("topic-*")}
        assert 0 < len(on_small) < len(names)
        doomed = sorted(on_small)[0]
        healthy = sorted(set(names) - on_small)[0]
        with Wire(server.bootstrap) as wire:
            taken, refusal = fill(wire, doomed, DISK_BYTES)
            assert taken > 0
            assert refusal.error_code == KAFKA_STORAGE_ERROR
            for _ in range(20):
                assert produce(wire, healthy, batch([b"y" * 100_000])).error_code == 0
        assert "No space left" in (tmp_path / "data.log").read_text()
    finally:
        server.kill()


def test_server_recovers_once_there_is_room_again(tmp_path: Path, small_disk: Path) -> None:
    data = small_disk / "logs"
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * (DISK_BYTES // 2))
    log = tmp_path / "server"
    server = start_millstream(log, {"log.dirs": str(data)})
    records = batch([b"x" * 500_000])
    try:
        create(server, "t")
        with Wire(server.bootstrap) as wire:
            taken, refusal = fill(wire, "t", DISK_BYTES)
            assert refusal.error_code == KAFKA_STORAGE_ERROR
    finally:
        server.kill()
    ballast.unlink()
    server = start_millstream(log, {"log.dirs": str(data)})
    try:
        with Wire(server.bootstrap) as wire:
            answer = produce(wire, "t", records)
        assert (answer.error_code, answer.base_offset) == (0, taken)
    finally:
        server.kill()


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="`prlimit` (util-linux) is missing")
def test_file_that_may_not_grow_is_a_storage_error(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: writes past 4 MB of any file fail, as they do at a quota's end."""
    server = start_millstream(tmp_path / "data", wrapper=["prlimit", f"--fsize={4 << 20}", "--"])
    try:
        create(server, "t")
        with Wire(server.bootstrap) as wire:
            taken, refusal = fill(wire, "t", 8 << 20)
            assert taken > 0
            assert refusal.error_code == KAFKA_STORAGE_ERROR
            assert wire.call("api_versions", 0).error_code == 0
    finally:
        server.kill()


def test_read_only_directory_is_refused_at_start_with_its_name(
    tmp_path: Path, small_disk: Path
) -> None:
    remount = ["mount", "-o", "remount,ro", str(small_disk)]
    subprocess.run(remount, check=True, capture_output=True)
    with pytest.raises(RuntimeError, match="ended at start") as refused:
        start_millstream(tmp_path / "server", {"log.dirs": str(small_disk / "logs")})
    assert str(small_disk) in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_second_server_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    server = start_millstream(tmp_path / "data")
    try:
        with pytest.raises(RuntimeError, match="ended at start") as refused:
            start_millstream(tmp_path / "data")
        assert "lock" in str(refused.value).lower() or "in use" in str(refused.value).lower()
        assert "Traceback" not in str(refused.value)
    finally:
        server.kill()
