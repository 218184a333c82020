"""Positions of records: as bytes, and which of several is the newest."""

from __future__ import annotations

import uuid

import numpy as np
import pyarrow as pa
import pytest

from millstream.pipelines.row_positions import (
    POSITION_BYTES,
    Positions,
    decode_positions,
    encode_positions,
    group_times,
    is_position,
    log_number,
)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_positions_come_back_from_bytes_also_of_a_slice_and_with_nulls() -> None:
    given = Positions(numbers(-1, 5, 2**50), numbers(7, 2**62, 9), numbers(0, 1, 2**63 - 1))
    column = encode_positions(given)
    assert is_position(column.type)
    assert column[0].as_py() == (-1).to_bytes(8, "little", signed=True) + b"\7" + bytes(15)
    found = decode_positions(column)
    assert all((a == b).all() for a, b in zip(found, given, strict=True))
    with_null = pa.concat_arrays([pa.nulls(1, pa.binary()), column]).slice(0, 3)
    found = decode_positions(with_null)
    assert found.offsets.tolist() == [-(2**63), 0, 1]
    assert decode_positions(column.slice(1, 1)).times_ms.tolist() == [5]
    assert not len(decode_positions(column.slice(0, 0)).logs)


def test_other_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="a column of positions has other bytes"):
        decode_positions(pa.array([bytes(POSITION_BYTES - 1)]))


def test_log_is_a_partition_of_a_topic_that_was_not_recreated() -> None:
    first, second = uuid.UUID(int=1), uuid.UUID(int=2)
    logs = [
        log_number("users", first, 0),
        log_number("users", first, 1),
        log_number("users", second, 0),
        log_number("users", None, 0),
        log_number("clients", first, 0),
    ]
    assert len(set(logs)) == len(logs)
    assert logs == sorted(logs[:2]) + logs[2:], "the greater partition has the greater number"
    assert all(0 <= log < 2**63 for log in logs)
    assert log_number("users", first, 0) == 4264436014170243072, "it is in checkpoints"


def test_times_are_the_greatest_of_their_group_and_log() -> None:
    positions = Positions(numbers(5, 1, 3, 9), numbers(0, 0, 1, 0), numbers(1, 2, 1, 7))
    assert group_times(positions, numbers(0, 0, 0, 4)).tolist() == [5, 5, 3, 9]
    empty = Positions(numbers(), numbers(), numbers())
    assert not len(group_times(empty, numbers()))
