"""Transactions in compaction: which records and markers can be dropped, and when.

Records of an aborted transaction are dropped at once. A marker is kept as long as the log has
records of its transaction, and then for `delete.retention.ms`, like a tombstone, so that consumers
that have read the records also see the marker.

The cleaner feeds batches in the order of the log. The caller supplies the aborted transactions of
the range, from the segments' `.txnindex` files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from millstream.records.batch import BatchHeader
from millstream.records.record import ControlType
from millstream.storage.transactions import AbortedTransaction


class CleanedTransactions:
    """State of one pass over the log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = deque(sorted(set(aborted), key=lambda each: each.first_offset))
        self._aborted: dict[int, AbortedTransaction] = {}
        self._aborted_with_data: set[int] = set()
        self._committed_with_data: set[int] = set()

    def on_batch(self, header: BatchHeader) -> bool:
        """A data batch; True if it belongs to an aborted transaction and can be dropped."""
        self._advance(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._aborted:
            self._aborted_with_data.add(header.producer_id)
            return True
        self._committed_with_data.add(header.producer_id)
        return False

    def on_marker(
        self, header: BatchHeader, control_type: ControlType | None
    ) -> tuple[bool, AbortedTransaction | None]:
        """A control batch (type None: an earlier cleaning emptied it).

        Returns whether nothing of its transaction was met, so that it may go in time, and the
        aborted transaction if that must stay in the index.
        """
        self._advance(header.last_offset)
        producer_id = header.producer_id
        if control_type is None:
            return True, None
        if control_type is ControlType.ABORT:
            aborted = self._aborted.pop(producer_id, None)
            if aborted is not None and producer_id in self._aborted_with_data:
                self._aborted_with_data.discard(producer_id)
                return False, aborted
            return True, None
        if control_type is ControlType.COMMIT:
            had_data = producer_id in self._committed_with_data
            self._committed_with_data.discard(producer_id)
            return not had_data, None
        return False, None

    def _advance(self, offset: int) -> None:
        """Activate aborted transactions that start before this offset."""
        while self._coming and self._coming[0].first_offset <= offset:
            aborted = self._coming.popleft()
            self._aborted.setdefault(aborted.producer_id, aborted)
