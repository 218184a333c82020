"""Guards of a partition, taken while a coordinator on another broker verifies a transaction.

The coordinator's answer holds as long as no marker of the producer has come and the leader is the
same: a late marker would not end what is appended after it (KAFKA-14402).
"""

from __future__ import annotations


class VerificationGuard:
    """Valid until a transaction of its producer ends in the partition, or its leader changes."""

    __slots__ = ("leader_epoch", "producer_id")

    def __init__(self, producer_id: int, leader_epoch: int) -> None:
        self.producer_id = producer_id
        self.leader_epoch = leader_epoch


class VerificationGuards:
    """The guards of one partition that are still valid, unless the leader has changed."""

    __slots__ = ("_of_producer",)

    def __init__(self) -> None:
        # None if there are none, as in most partitions at most times.
        self._of_producer: dict[int, set[VerificationGuard]] | None = None

    @property
    def is_empty(self) -> bool:
        return self._of_producer is None

    def take(self, producer_id: int, leader_epoch: int) -> VerificationGuard:
        """Call it before the coordinator is asked."""
        guard = VerificationGuard(producer_id, leader_epoch)
        if self._of_producer is None:
            self._of_producer = {}
        self._of_producer.setdefault(producer_id, set()).add(guard)
        return guard

    def is_valid(self, guard: VerificationGuard, leader_epoch: int) -> bool:
        if self._of_producer is None or guard.leader_epoch != leader_epoch:
            return False
        return guard in self._of_producer.get(guard.producer_id, ())

    def drop(self, guard: VerificationGuard) -> None:
        """Forget a guard that nobody will ask for again."""
        guards = self._of_producer and self._of_producer.get(guard.producer_id)
        if guards:
            guards.discard(guard)
            if not guards:
                self.invalidate(guard.producer_id)

    def invalidate(self, producer_id: int) -> None:
        """A marker of the producer is being appended."""
        if self._of_producer is None:
            return
        self._of_producer.pop(producer_id, None)
        if not self._of_producer:
            self._of_producer = None
