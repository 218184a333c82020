"""Offsets committed in open transactions.

Several producers may have a pending offset for the same partition of a group. When one of them
commits, its offset takes effect at the position of its *record* in the log, not of its marker: a
commit with a newer record wins, even if it was decided earlier. Compaction gives the same result,
so a reloaded coordinator sees the same.

Records arrive in log order, so no offsets are compared: a newer commit *supersedes* earlier pending
ones. A superseded offset will not count, but while its transaction is open the partition is still
unstable. A tombstone ends even that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from millstream.coordination.group_records import OffsetCommitKey, OffsetCommitValue


class PendingOffsets:
    """The pending offsets of a shard, by partition and producer."""

    def __init__(self) -> None:
        # The producers of a partition are in the order of their last records; None: superseded.
        self._by_key: dict[OffsetCommitKey, dict[int, OffsetCommitValue | None]] = {}
        self._keys_of_producer: dict[int, set[OffsetCommitKey]] = {}
        self._keys_per_group: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __contains__(self, key: OffsetCommitKey) -> bool:
        return key in self._by_key

    def has_group(self, group_id: str) -> bool:
        return group_id in self._keys_per_group

    def of_group(self, group_id: str) -> list[OffsetCommitKey]:
        if not self.has_group(group_id):
            return []
        return [key for key in self._by_key if key.group_id == group_id]

    def __iter__(self) -> Iterator[tuple[OffsetCommitKey, OffsetCommitValue]]:
        """All pending offsets that are not superseded."""
        for key, pending in self._by_key.items():
            for value in pending.values():
                if value is not None:
                    yield key, value

    def add(self, key: OffsetCommitKey, value: OffsetCommitValue, producer_id: int) -> None:
        pending = self._by_key.get(key)
        if pending is None:
            pending = self._by_key[key] = {}
            self._keys_per_group[key.group_id] += 1
        pending.pop(producer_id, None)
        pending[producer_id] = value
        self._keys_of_producer.setdefault(producer_id, set()).add(key)

    def supersede(self, key: OffsetCommitKey) -> None:
        """A newer offset is committed: it supersedes all pending ones."""
        pending = self._by_key.get(key)
        if pending is not None:
            self._by_key[key] = dict.fromkeys(pending)

    def drop(self, key: OffsetCommitKey) -> None:
        """The offset is deleted, with all pending ones."""
        for producer_id in self._by_key.get(key, {}):
            keys = self._keys_of_producer[producer_id]
            keys.discard(key)
            if not keys:
                del self._keys_of_producer[producer_id]
        self._forget(key)

    def end(self, producer_id: int, committed: bool) -> dict[OffsetCommitKey, OffsetCommitValue]:
        """The producer's transaction has ended; returns the offsets that take effect."""
        count_now: dict[OffsetCommitKey, OffsetCommitValue] = {}
        for key in self._keys_of_producer.pop(producer_id, ()):
            pending = self._by_key[key]
            value = pending[producer_id]
            if committed and value is not None:
                count_now[key] = value
                for other in _before(pending, producer_id):
                    pending[other] = None
            del pending[producer_id]
            if not pending:
                self._forget(key)
        return count_now

    def _forget(self, key: OffsetCommitKey) -> None:
        if self._by_key.pop(key, None) is None:
            return
        self._keys_per_group[key.group_id] -= 1
        if not self._keys_per_group[key.group_id]:
            del self._keys_per_group[key.group_id]


def _before(pending: dict[int, OffsetCommitValue | None], producer_id: int) -> list[int]:
    """The producers whose records are older than this one's."""
    producers = list(pending)
    return producers[: producers.index(producer_id)]
