"""Batches without the records that a later record of the same key supersedes.

A coordinator that loads its partition only needs the last record of each key, and decoding a record
in Python costs as much as dropping a thousand in the compiled walks of compaction. So each chunk is
compacted in memory first. Tombstones are kept, because replay needs them.
"""

from __future__ import annotations

from array import array

from millstream.records._walk import WALK_DONE, OffsetMap, RecordFilter
from millstream.records.batch import Buffer, iterate_headers

# The smallest record with a key is longer than this, which bounds the keys in a chunk.
_RECORD_BYTES_MIN = 8
_MAP_ENTRY_BYTES = 24
_LOAD_FACTOR = 0.9
# A record can grow this much when its timestamp is rewritten, in a batch of tiny records.
_GROWTH_FACTOR_MAX = 3
_NO_LIMIT = 2**62


def without_superseded(batches: Buffer) -> tuple[Buffer, int]:
    """The whole batches of a chunk, less what is superseded within it, and the offset after them.

    A chunk with batches that only Python can open (compressed, control) comes back as it is; so
    does one with transactional batches, since whether those supersede anything is decided later.
    """
    size = len(batches)
    keys_max = size // _RECORD_BYTES_MIN + 1
    last_offsets = OffsetMap(int(keys_max / _LOAD_FACTOR + 2) * _MAP_ENTRY_BYTES, _LOAD_FACTOR)
    status, _, latest_offset = last_offsets.index_batches(batches, 0, size, 0)
    if status != WALK_DONE or latest_offset < 0:
        return as_it_is(batches)
    keep_latest = RecordFilter(
        last_offsets,
        latest_offset=latest_offset,
        now_ms=0,  # the time has not come to drop any tombstone
        delete_retention_ms=_NO_LIMIT,
        upper_bound=_NO_LIMIT,
        kept_ends=array("q"),
    )
    output = bytearray(_GROWTH_FACTOR_MAX * size)
    status, _, filled, _, _ = keep_latest.filter_batches(batches, 0, size, output, 0)
    if status != WALK_DONE:
        return as_it_is(batches)
    del output[filled:]
    return output, latest_offset + 1


def as_it_is(batches: Buffer) -> tuple[Buffer, int]:
    """The chunk, and the offset after its whole batches."""
    next_offset = 0
    for _, header in iterate_headers(batches):
        next_offset = header.next_offset
    return batches, next_offset
