"""Reading the log for a share group."""

from __future__ import annotations

from millstream.broker.sharing.reading import READ_BYTES_MIN, LogRead, bytes_to_read
from millstream.coordination.sharing.acquisition import Acquired, LogBatch


def read_of(*sizes: int) -> LogRead:
    """Batches of ten records each, of these sizes in bytes."""
    data = b"".join(bytes([index]) * size for index, size in enumerate(sizes))
    batches = [LogBatch(10 * index, 10 * index + 9) for index in range(len(sizes))]
    positions = [sum(sizes[:index]) for index in range(len(sizes))]
    return LogRead(0, data, batches, positions, [])


def test_part_has_the_batches_from_the_first_record_to_the_last() -> None:
    read = read_of(3, 4, 5, 6)
    assert bytes(read.part([Acquired(12, 14, 1), Acquired(25, 25, 2)])) == b"\1" * 4 + b"\2" * 5
    assert bytes(read.part([Acquired(0, 0, 1)])) == b"\0" * 3
    assert bytes(read.part([Acquired(39, 39, 1)])) == b"\3" * 6


def test_part_is_no_copy_where_everything_is_acquired() -> None:
    read = read_of(3, 4)
    assert read.part([Acquired(0, 19, 1)]) is read.data


def test_no_more_is_read_than_the_records_wanted_may_take() -> None:
    assert bytes_to_read(500, 0, 1 << 20) == 1 << 20  # nothing is known yet
    assert bytes_to_read(500, 100, 1 << 20) == 62_500
    assert bytes_to_read(1, 100, 1 << 20) == READ_BYTES_MIN
    assert bytes_to_read(500, 100, 10_000) == 10_000
