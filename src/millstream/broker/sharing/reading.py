"""Reads the log for a share group, within a member's limits and isolation level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from millstream.coordination.sharing.acquisition import Acquired, LogBatch
from millstream.records.batch import BatchHeader, iterate_headers

if TYPE_CHECKING:
    from millstream.broker.replicas.partition import Partition
    from millstream.protocol.wire import Buffer
    from millstream.storage.transactions import AbortedTransaction

READ_BYTES_MIN = 32 * 1024
SPARE = 1.25  # what is read beyond the average size of as many records


class LogRead(NamedTuple):
    """Batches of the log from an offset on."""

    offset: int
    data: Buffer
    batches: list[LogBatch]
    positions: list[int]  # position of each batch in the data
    aborted: list[tuple[int, int]]  # offsets of aborted transactions

    def part(self, acquired: Sequence[Acquired]) -> Buffer:
        """The batches from the first record acquired to the last."""
        first, last = acquired[0].first_offset, acquired[-1].last_offset
        begin, end = 0, len(self.data)
        for batch, position in zip(self.batches, self.positions, strict=True):
            if batch.first_offset <= first:
                begin = position
            elif batch.first_offset > last:
                end = position
                break
        if begin == 0 and end == len(self.data):
            return self.data
        return memoryview(self.data)[begin:end]


def bytes_to_read(records_max: int, bytes_per_record: float, bytes_max: int) -> int:
    """Estimated size of that many records."""
    if bytes_per_record:
        wanted = int(records_max * bytes_per_record * SPARE)
        bytes_max = min(bytes_max, max(wanted, READ_BYTES_MIN))
    return bytes_max


def read_log(
    partition: Partition, offset: int, bytes_max: int, *, committed: bool, may_block: bool
) -> LogRead:
    """Whole batches from that offset on. Touches no state, so it may run in a thread.

    Raises `ApiError`, and `NotCached` unless it may block.
    """
    data: Buffer
    transactions: Sequence[AbortedTransaction] = ()
    if committed:
        data, transactions = partition.read_committed(
            offset, max_bytes=bytes_max, may_block=may_block
        )
    else:
        data = partition.read(offset, max_bytes=bytes_max, may_block=may_block)
    positions: list[int] = []
    batches: list[LogBatch] = []
    aborted: list[tuple[int, int]] = []
    for position, header in iterate_headers(data):
        positions.append(position)
        batches.append(LogBatch(header.base_offset, header.base_offset + header.last_offset_delta))
        if transactions and _is_aborted(header, transactions):
            aborted.append((header.base_offset, header.last_offset))
    return LogRead(offset, data, batches, positions, aborted)


def _is_aborted(header: BatchHeader, transactions: Sequence[AbortedTransaction]) -> bool:
    return (
        header.is_transactional
        and not header.is_control
        and any(
            transaction.producer_id == header.producer_id
            and transaction.first_offset <= header.base_offset <= transaction.last_offset
            for transaction in transactions
        )
    )
