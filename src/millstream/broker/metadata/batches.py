"""One commit of the metadata as one record batch, in KRaft's form."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import MetadataRecord, decode_record, encode_record
from millstream.records.batch import Buffer
from millstream.records.record import Record, decode_batch, encode_batch

FIRST_EPOCH = 1  # of the quorum; nobody is elected to it here, but Kafka may have written others
REPLAYED_RECORDS_MIN = 1_000  # fewer than this are read faster than they are replaced


def encode_commit(
    records: Sequence[MetadataRecord], *, base_offset: int, epoch: int, now_ms: int
) -> bytes:
    return encode_batch(
        [
            Record(offset, now_ms, None, encode_record(record))
            for offset, record in enumerate(records, base_offset)
        ],
        leader_epoch=epoch,
    )


def decode_commit(data: Buffer, position: int = 0) -> list[MetadataRecord]:
    return [decode_record(record.value or b"") for record in decode_batch(data, position)]


def needs_snapshot(image: ClusterImage, stored_count: int) -> bool:
    """Whether a stop should write one, so that the next start does not read deleted records."""
    return stored_count > 2 * image.record_count + REPLAYED_RECORDS_MIN
