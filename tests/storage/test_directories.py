"""Directories opened, locked, shared out, failing one at a time, and closed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.config.topic import TopicConfig
from millstream.errors import ApiError, DirectoryFailed, DirectoryLocked, ErrorCode, StorageError
from millstream.storage.checkpoints import read_meta_properties
from millstream.storage.directories import LogDirectories
from millstream.testing.filesystem import MemoryFileSystem
from tests.storage.store import DATA, TOPIC, Store, read_all, topic_id


def test_new_directory_gets_its_papers() -> None:
    store = Store()
    meta = read_meta_properties(store.fs, DATA)
    assert meta is not None
    assert meta.node_id == 1
    assert meta.cluster_id == store.directories.cluster_id
    assert meta.directory_id == store.directories.directories[0].directory_id
    cluster_id = store.directories.cluster_id
    store.crash()
    assert store.directories.cluster_id == cluster_id


def test_directory_in_use_is_refused_with_its_name() -> None:
    store = Store()
    with pytest.raises(DirectoryLocked, match=f"{DATA} is in use by another process; stop"):
        LogDirectories.open([DATA], fs=store.fs)
    store.directories.close()
    LogDirectories.open([DATA], fs=store.fs)


def test_directory_of_a_killed_process_is_free(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys; from millstream.storage.directories import LogDirectories\n"
        "LogDirectories.open([sys.argv[1]])\n"
        "print('open', flush=True); signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        with pytest.raises(DirectoryLocked):
            LogDirectories.open([tmp_path])
        os.kill(process.pid, signal.SIGKILL)
    LogDirectories.open([tmp_path]).close()


def test_directory_of_another_node_is_refused() -> None:
    store = Store()
    store.directories.close()
    with pytest.raises(StorageError, match=r"belongs to node 1, not to node 2; set node\.id=1"):
        LogDirectories.open([DATA], fs=store.fs, node_id=2)


def test_directories_of_different_clusters_are_refused() -> None:
    fs = MemoryFileSystem()
    LogDirectories.open(["/one"], fs=fs, cluster_id="first").close()
    LogDirectories.open(["/two"], fs=fs, cluster_id="second").close()
    with pytest.raises(StorageError, match="different clusters: first, second"):
        LogDirectories.open(["/one", "/two"], fs=fs)


def test_new_log_goes_where_the_fewest_are() -> None:
    store = Store(paths=("/one", "/two", "/three"))
    for partition in range(7):
        store.log(partition)
    counts = [directory.log_count for directory in store.directories.directories]
    assert sorted(counts) == [2, 2, 3]
    store.restart()
    assert [directory.log_count for directory in store.directories.directories] == counts
    assert len(store.directories.logs) == 7


def test_failing_directory_takes_down_only_its_own_logs() -> None:
    store = Store(paths=("/one", "/two"))
    first, second = store.log(0), store.log(1)
    store.fs.fail_everything_under(first.directory.path + "/")
    with pytest.raises(ApiError) as raised:
        store.append(b"x", partition=0)
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    store.append(b"x", partition=1)
    assert store.log(2).directory is second.directory
    assert store.directories.live_directories == [second.directory]


def test_directory_that_cannot_be_read_at_the_start_is_offline_alone() -> None:
    store = Store(paths=("/one", "/two"))
    for partition in range(4):
        store.append(b"x", partition=partition)
    store.directories.close()
    store.fs.fail_everything_under("/one")
    store.reopen()
    assert [directory.path for directory in store.directories.live_directories] == ["/two"]
    assert len(store.directories.logs) == 2


def test_start_without_any_usable_directory_fails() -> None:
    store = Store()
    store.directories.close()
    store.fs.fail_everything_under(DATA)
    with pytest.raises(DirectoryFailed, match="no log directory can be used"):
        store._open()


def test_deleted_log_is_gone_at_once_and_its_files_with_the_sweep() -> None:
    store = Store()
    store.append(b"x")
    store.flush(0)
    store.directories.delete(TOPIC, 0)
    names = [name for name in store.fs.listdir(DATA) if name.startswith("orders-0.")]
    assert len(names) == 1
    assert names[0].endswith("-delete")
    assert len(names[0]) == len("orders-0.") + 32 + len("-delete")
    store.directories.sweep()
    assert not store.fs.exists(f"{DATA}/{names[0]}")
    assert store.append(b"anew").first_offset == 0


def test_log_that_was_being_deleted_stays_deleted_after_a_start() -> None:
    store = Store()
    store.append(b"x")
    store.directories.delete(TOPIC, 0)
    store.kill()
    assert store.directories.logs == {}
    store.directories.sweep()
    assert not any(name.endswith("-delete") for name in store.fs.listdir(DATA))


def test_unknown_directory_is_left_alone() -> None:
    store = Store()
    store.fs.make_directory(f"{DATA}/lost+found")
    store.restart()
    assert store.fs.exists(f"{DATA}/lost+found")


def test_log_found_in_two_directories_is_refused() -> None:
    fs = MemoryFileSystem()
    for path in ("/one", "/two"):
        directories = LogDirectories.open([path], fs=fs, cluster_id="c")
        directories.create(TOPIC, 0, topic_id(), TopicConfig())
        directories.close()
    with pytest.raises(StorageError, match="orders-0 is in both /one and /two"):
        LogDirectories.open(["/one", "/two"], fs=fs)


@pytest.mark.parametrize("current", ["/one", "/two"])
def test_log_of_the_current_topic_is_served_where_another_directory_has_an_older_one(
    current: str,
) -> None:
    fs = MemoryFileSystem()
    ids = {path: topic_id(path) for path in ("/one", "/two")}
    for path in ids:
        directories = LogDirectories.open([path], fs=fs, cluster_id="c")
        directories.create(TOPIC, 0, ids[path], TopicConfig())
        directories.close()
    both = LogDirectories.open(list(ids), fs=fs)
    both.serve_topics({TOPIC: ids[current]})
    assert both.logs[TOPIC, 0].directory.path == current
    for deletion in both.prepare_deletions(both.namesakes[:]):
        deletion.execute()
        deletion.complete()
    both.close()
    again = LogDirectories.open(list(ids), fs=fs)
    assert [log.directory.path for log in again.logs.values()] == [current]
    assert again.clean
    again.close()


def test_checkpoint_saves_recovery_points_starts_and_high_watermarks() -> None:
    store = Store()
    for _ in range(3):
        store.append(b"x")
    store.flush(0, to_segments=True)
    store.append(b"unflushed")
    store.log().delete_records_before(1)
    store.directories.checkpoint({(TOPIC, 0): 3})
    files = store.files("-checkpoint")
    assert files[f"{DATA}/recovery-point-offset-checkpoint"] == b"0\n1\norders 0 3\n"
    assert files[f"{DATA}/log-start-offset-checkpoint"] == b"0\n1\norders 0 1\n"
    assert files[f"{DATA}/replication-offset-checkpoint"] == b"0\n1\norders 0 3\n"
    store.kill()
    assert store.directories.high_watermarks == {(TOPIC, 0): 3}


def test_recovery_point_in_the_checkpoint_never_passes_what_is_synced() -> None:
    store = Store()
    for partition in range(6):
        store.append(b"x", partition=partition)
    store.flush(*range(6))  # by the journal
    store.directories.checkpoint()
    content = store.files(f"{DATA}/recovery-point-offset-checkpoint").popitem()[1]
    assert content.splitlines()[2:] == [b"orders %d 0" % partition for partition in range(6)]


def test_full_disk_does_not_take_a_directory_down_at_a_checkpoint() -> None:
    store = Store()
    store.append(b"x")
    store.flush(0)
    store.directories.checkpoint()
    before = store.files("-checkpoint")
    store.append(b"y")
    store.flush(0, to_segments=True)
    store.fs.fail_writes_after(3)
    store.directories.checkpoint()
    assert store.directories.live_directories
    assert store.files("-checkpoint") == before
    store.fs.heal()
    store.directories.checkpoint()
    assert store.log().saved_recovery_point == 2


def test_failed_directory_gets_no_mark_of_a_clean_stop() -> None:
    store = Store(paths=("/one", "/two"))
    store.log(0)
    failed = store.log(1).directory
    assert store.directories.fail(failed, OSError("pulled out")) == [store.log(1)]
    store.directories.close()
    marked = [path for path in ("/one", "/two") if store.fs.exists(f"{path}/.kafka_cleanshutdown")]
    assert marked == [path for path in ("/one", "/two") if path != failed.path]


def test_clean_stop_survives_a_power_cut() -> None:
    store = Store(paths=("/one", "/two"))
    for partition in range(20):
        store.append(b"%d" % partition, partition=partition)
    store.directories.close()
    store.crash()
    assert store.directories.clean
    for partition in range(20):
        assert [record.value for record in read_all(store.log(partition))] == [b"%d" % partition]


def test_cleanly_stopped_log_has_all_the_files_that_kafka_expects() -> None:
    store = Store()
    store.append(b"x")
    store.log(1)
    store.directories.close()
    for partition in (0, 1):
        names = set(store.fs.listdir(f"{DATA}/orders-{partition}"))
        expected = {f"{0:020d}{suffix}" for suffix in (".log", ".index", ".timeindex")}
        assert expected | {"partition.metadata"} <= names
    assert store.files(".kafka_cleanshutdown").popitem()[1] == b'{"version":0,"brokerEpoch":-1}'
    assert not any("journal" in name for name in store.fs.listdir(DATA))


def open_file_count() -> int:
    """Of this process; none where the system does not tell."""
    descriptors = Path("/proc/self/fd")
    return len(list(descriptors.iterdir())) if descriptors.exists() else 0


def test_many_logs_restart_on_the_real_filesystem(tmp_path: Path) -> None:
    """And few of their files are open at any time."""
    directories = LogDirectories.open([tmp_path], open_files_max=20)
    for partition in range(200):
        directories.create(TOPIC, partition, topic_id(), TopicConfig())
    directories.close()
    others = open_file_count()
    directories = LogDirectories.open([tmp_path], open_files_max=20)
    assert len(directories.logs) == 200
    assert directories.clean
    assert open_file_count() - others < 100
    directories.close()
