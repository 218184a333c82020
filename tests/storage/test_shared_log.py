"""A log that several processes append to: nothing is lost or doubled, whoever is killed when."""

from __future__ import annotations

from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ApiError, ErrorCode, StorageError
from millstream.records.record import Record, decode_batch, encode_batch
from millstream.storage.shared_log import LOCK_SECONDS_MAX, Outrun, SharedLog, StoredBatch
from millstream.testing.filesystem import MemoryFileSystem
from tests.storage.processes import Killed, Process

PATH = "/data/log"
FILE = f"{PATH}/{0:020d}.log"


def open_log(fs: Any, offset: int = 0) -> SharedLog:
    log = SharedLog(fs, PATH, sleep=lambda seconds: None)
    with log.locked():
        log.open_at(offset)
        log.read_to_end()
    return log


def batch_at(offset: int, value: bytes = b"value") -> bytes:
    return encode_batch([Record(offset, 0, None, value), Record(offset + 1, 0, None, value)])


def append(log: SharedLog, value: bytes = b"value") -> list[StoredBatch]:
    """Returns what others had appended."""
    with log.locked():
        read = log.read_to_end()
        log.append(batch_at(log.end_offset, value))
    return read


def values(batches: list[StoredBatch]) -> list[bytes | None]:
    return [decode_batch(it.data, 0)[0].value for it in batches]


def stored(fs: MemoryFileSystem) -> list[bytes | None]:
    """All values, as a new process reads them."""
    log = SharedLog(fs, PATH)
    with log.locked():
        log.open_at(0)
        return values(log.read_to_end())


@pytest.fixture
def fs() -> MemoryFileSystem:
    return MemoryFileSystem()


def test_batches_are_read_by_others_in_order(fs: MemoryFileSystem) -> None:
    one, two = open_log(fs), open_log(fs)
    append(one, b"1")
    append(one, b"2")
    assert not two.is_current
    assert values(append(two, b"3")) == [b"1", b"2"]
    assert values(one.read()) == [b"3"]
    assert one.is_current
    assert one.end_offset == two.end_offset == 6
    assert stored(fs) == [b"1", b"2", b"3"]


def test_batch_of_a_wrong_offset_is_refused(fs: MemoryFileSystem) -> None:
    log = open_log(fs)
    with log.locked(), pytest.raises(StorageError, match="batch at 4"):
        log.append(batch_at(4))


def test_lock_that_is_held_for_long_is_given_up(fs: MemoryFileSystem) -> None:
    waited: list[float] = []
    one, two = open_log(fs), SharedLog(fs, PATH, sleep=waited.append)
    with one.locked(), pytest.raises(ApiError) as caught, two.locked():
        pass
    assert caught.value.code is ErrorCode.REQUEST_TIMED_OUT
    assert sum(waited) >= LOCK_SECONDS_MAX


def test_lock_is_waited_for(fs: MemoryFileSystem) -> None:
    holder = open_log(fs)
    lock = holder.locked()
    lock.__enter__()
    log = SharedLog(fs, PATH, sleep=lambda seconds: lock.__exit__(None, None, None))
    with log.locked():
        pass


def test_torn_batch_is_invisible_and_truncated_by_the_next_append(fs: MemoryFileSystem) -> None:
    one, two = open_log(fs), open_log(fs)
    append(one, b"1")
    fd = fs.open(FILE)
    fs.pwritev(fd, (batch_at(2, b"torn")[:-1],), fs.size(fd))
    assert values(two.read()) == [b"1"]
    assert not two.is_current
    assert append(two, b"2") == []
    assert values(one.read()) == [b"2"]
    assert stored(fs) == [b"1", b"2"]


def test_corruption_before_the_end_is_reported_and_not_cut_off(fs: MemoryFileSystem) -> None:
    log = open_log(fs)
    for value in (b"1", b"2", b"3"):
        append(log, value)
    size = fs.file_size(FILE)
    fs.flip(FILE, size // 3 + 30)
    with pytest.raises(StorageError, match="corrupt at position"):
        open_log(fs)
    assert fs.file_size(FILE) == size


def test_corruption_in_an_older_file_is_reported(fs: MemoryFileSystem) -> None:
    log = open_log(fs)
    append(log, b"1")
    fs.make_directory(PATH)
    fs.close(fs.open(f"{PATH}/{4:020d}.log", create=True))
    fd = fs.open(FILE)
    fs.pwritev(fd, (batch_at(2, b"torn")[:-1],), fs.size(fd))
    with pytest.raises(StorageError, match="later records follow"):
        open_log(fs)


def test_full_disk_refuses_the_append_and_the_next_one_succeeds(fs: MemoryFileSystem) -> None:
    log = open_log(fs)
    append(log, b"1")
    fs.fail_writes_after(10)
    with pytest.raises(ApiError) as caught:
        append(log, b"2")
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    fs.heal()
    append(log, b"3")
    assert stored(fs) == [b"1", b"3"]


def test_reader_syncs_what_a_killed_process_did_not(fs: MemoryFileSystem) -> None:
    append(open_log(fs), b"1")
    reader = open_log(fs)
    fd = fs.open(FILE)
    fs.pwritev(fd, (batch_at(2, b"2"),), fs.size(fd))
    assert values(reader.read()) == [b"2"]
    fs.crash()
    assert stored(fs) == [b"1", b"2"]


def test_rolled_log_begins_after_the_snapshot(fs: MemoryFileSystem) -> None:
    one, two = open_log(fs), open_log(fs)
    append(one, b"1")
    with one.locked():
        one.read_to_end()
        one.roll()
    append(one, b"2")
    assert values(two.read()) == [b"1", b"2"]  # its file was removed, but is still open
    assert fs.listdir(PATH).count(f"{0:020d}.log") == 0
    assert values(append(open_log(fs, 2), b"3")) == []
    assert values(two.read()) == [b"3"]


def test_reader_that_missed_a_whole_file_is_outrun(fs: MemoryFileSystem) -> None:
    one, two = open_log(fs), open_log(fs)
    for _ in range(2):
        append(one)
        with one.locked():
            one.read_to_end()
            one.roll()
    with pytest.raises(Outrun):
        two.read()


def test_log_without_the_records_after_the_snapshot_is_refused(fs: MemoryFileSystem) -> None:
    log = open_log(fs)
    append(log)
    with log.locked():
        log.roll()
    with pytest.raises(StorageError, match="begins at offset 2"):
        open_log(fs, 0)


def test_rolling_an_empty_log_changes_nothing(fs: MemoryFileSystem) -> None:
    log = open_log(fs)
    with log.locked():
        log.roll()
    append(log, b"1")
    assert stored(fs) == [b"1"]


def ways_to_die() -> list[tuple[int, int]]:
    size = len(batch_at(0))
    return [(step, torn_bytes) for step in range(12) for torn_bytes in (0, size // 2, size)]


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize(("dies_at", "torn_bytes"), ways_to_die())
def test_process_killed_at_any_step_loses_and_doubles_nothing(
    fs: MemoryFileSystem, dies_at: int, torn_bytes: int, power_cut: bool
) -> None:
    first = open_log(fs)
    append(first, b"before")
    log = open_log(fs)
    process: Any = Process(fs, dies_at=dies_at, torn_bytes=torn_bytes)
    log._fs = process
    acknowledged = False
    with suppress(Killed):
        append(log, b"killed")
        acknowledged = True
    seen = values(first.read())
    if power_cut:
        fs.crash(Random(dies_at))
        first = open_log(fs)
    append(first, b"after")
    after = stored(fs)
    assert after in ([b"before", b"after"], [b"before", b"killed", b"after"])
    if acknowledged or seen:
        assert b"killed" in after


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("dies_at", range(16))
def test_process_killed_while_it_rolls_loses_nothing(
    fs: MemoryFileSystem, dies_at: int, power_cut: bool
) -> None:
    """The caller has written a snapshot, which ends at 2, before."""
    append(open_log(fs), b"1")
    log = open_log(fs)
    process: Any = Process(fs, dies_at=dies_at)
    log._fs = process
    with suppress(Killed), log.locked():
        log.read_to_end()
        log.roll()
        log.append(batch_at(2, b"2"))
    if power_cut:
        fs.crash(Random(dies_at))
    again = SharedLog(fs, PATH)
    with again.locked():
        again.open_at(2)
        after = values(again.read_to_end())
        again.append(batch_at(again.end_offset, b"3"))
    assert [value for value in after if value != b"1"] in ([], [b"2"])
    assert process.is_dead or b"2" in after


class Writer:
    def __init__(self, fs: MemoryFileSystem) -> None:
        self.log = open_log(fs)
        self.seen: list[bytes | None] = []


@given(seed=st.integers(0, 2**32), steps=st.integers(5, 60))
def test_several_writers_killed_at_random_agree_on_one_order(seed: int, steps: int) -> None:
    random, fs = Random(seed), MemoryFileSystem()
    acknowledged: list[bytes | None] = []
    writers = [Writer(fs) for _ in range(3)]
    for step in range(steps):
        index = random.randrange(len(writers))
        writer, value = writers[index], str(step).encode()
        if random.random() < 0.4:
            writer.seen += values(writer.log.read())
            continue
        dying: Any = Process(
            fs, dies_at=random.choice([-1, *range(10)]), torn_bytes=random.randrange(200)
        )
        writer.log._fs = dying
        try:
            append(writer.log, value)
            acknowledged.append(value)
            writer.log._fs = fs
        except Killed:
            if random.random() < 0.3:
                fs.crash(random)
                writers = [Writer(fs) for _ in writers]
            writers[index] = Writer(fs)
    order = stored(fs)
    assert [value for value in order if value in acknowledged] == acknowledged
    assert len(order) == len(set(order))
    for writer in writers:
        positions = [order.index(value) for value in writer.seen]
        assert positions == sorted(positions)
