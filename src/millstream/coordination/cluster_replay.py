"""Reading stored metadata records back into an image.

Apache Kafka may write a large change as several batches in a metadata transaction (KIP-868): the
records between BeginTransactionRecord and EndTransactionRecord count together or, after
AbortTransactionRecord or a controller's crash, not at all. Its first start on an empty directory
does. Millstream begins none, since each of its commits is one batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    RemoveTopicRecord,
)
from millstream.coordination.record_codec import CorruptRecord


class ClusterReplay:
    """Collects the records of a log, in order, on top of an image.

    They are applied all at once, so that a long log does not copy a large image for every batch.
    """

    def __init__(self, image: ClusterImage) -> None:
        self._image = image
        self._version = image.version
        self._records: list[MetadataRecord] = []
        self._in_transaction: list[MetadataRecord] | None = None
        self.deleted_topic_ids: set[UUID] = set()

    @property
    def is_in_transaction(self) -> bool:
        """Whether the last transaction has neither ended nor been aborted."""
        return self._in_transaction is not None

    def add(self, records: Iterable[MetadataRecord], last_offset: int) -> None:
        """One batch. Raises `CorruptRecord` where a transaction ends that has not begun."""
        self._version = last_offset
        for record in records:
            match record:
                case BeginTransactionRecord():
                    self._in_transaction = []
                case EndTransactionRecord():
                    self._records += self._end_transaction()
                case AbortTransactionRecord():
                    self._end_transaction()
                case _ if self._in_transaction is not None:
                    self._in_transaction.append(record)
                case _:
                    self._records.append(record)

    def _end_transaction(self) -> list[MetadataRecord]:
        records, self._in_transaction = self._in_transaction, None
        if records is None:
            raise CorruptRecord("the end of a metadata transaction that has not begun")
        return records

    def finish(self) -> ClusterImage:
        """The image after all records, but those of a transaction that is still open."""
        if self._version == self._image.version:
            return self._image
        self.deleted_topic_ids.update(
            record.topic_id for record in self._records if isinstance(record, RemoveTopicRecord)
        )
        return self._image.apply(self._records, self._version)
