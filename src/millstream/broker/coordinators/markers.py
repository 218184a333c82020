"""Transaction markers: write the end of a transaction to its partitions.

`Markers` writes those of one transaction to all of its partitions, in one turn so that they share a
flush, and reports when all of them are durable:

    deleted      a partition whose topic was deleted needs no marker
    superseded   a partition with a newer epoch of the producer refuses it: the transaction has
                 ended there
    not ready    one that is offline, or whose group coordinator is still loading, is retried with
                 a growing delay
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from millstream.broker.completion import Completion
from millstream.coordination.transactions.marker import TransactionMarker
from millstream.errors import ApiError, ErrorCode
from millstream.partitions import TopicPartition

if TYPE_CHECKING:
    from millstream.broker.replicas.pending import PendingAppend

logger = logging.getLogger(__name__)

RETRY_SECONDS_MIN = 0.02
RETRY_SECONDS_MAX = 1.0

WriteMarker: TypeAlias = "Callable[[str, int, TransactionMarker], PendingAppend]"


class Markers(Completion):
    """The markers of one transaction; done when all are written."""

    def __init__(
        self,
        marker: TransactionMarker,
        partitions: Iterable[TopicPartition],
        *,
        write: WriteMarker,
        exists: Callable[[str, int], bool],
    ) -> None:
        self._marker = marker
        self._missing = set(partitions)
        self._write = write
        self._exists = exists
        self._retry_seconds = RETRY_SECONDS_MIN
        self._retry: asyncio.TimerHandle | None = None
        self._to_retry: set[TopicPartition] = set()
        self._is_cancelled = False

    def start(self) -> None:
        if self._missing:
            self._write_to(self._missing)
        else:
            self.finish()

    def cancel(self) -> None:
        """Stop waiting; markers in flight are still written."""
        self._is_cancelled = True
        if self._retry is not None:
            self._retry.cancel()

    def _write_to(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in sorted(partitions):
            try:
                pending = self._write(*partition, self._marker)
            except ApiError as error:
                self._refused(partition, error)
            else:
                pending.when_done(partial(self._appended, partition))

    def _appended(self, partition: TopicPartition, pending: PendingAppend) -> None:
        if pending.error is None:
            self._has_it(partition)
        else:
            self._refused(partition, pending.error)

    def _refused(self, partition: TopicPartition, error: ApiError) -> None:
        if not self._exists(*partition):
            logger.info("%s-%d was deleted: skipping its transaction marker", *partition)
            self._has_it(partition)
        elif error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
            logger.warning("%s-%d: transaction marker refused: %s", *partition, error)
            self._has_it(partition)
        else:
            self._try_again(partition, error)

    def _has_it(self, partition: TopicPartition) -> None:
        self._missing.discard(partition)
        if not self._missing and not self._is_cancelled:
            self.finish()

    def _try_again(self, partition: TopicPartition, error: ApiError) -> None:
        if self._is_cancelled:
            return
        self._to_retry.add(partition)
        if self._retry is None:
            logger.info("%s-%d: cannot write a transaction marker yet: %s", *partition, error)
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(self._retry_seconds, self._write_again)
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)

    def _write_again(self) -> None:
        self._retry = None
        partitions, self._to_retry = self._to_retry, set()
        self._write_to(partitions)
