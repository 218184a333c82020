"""The formats of the metadata's nodes."""

from __future__ import annotations

import secrets

import pytest

from millstream.broker.cluster.nodes import (
    NODE_BYTES_MAX,
    Head,
    SnapshotHeader,
    decode_chunk,
    decode_entry,
    encode_chunks,
    encode_entry,
    entry_path,
)
from millstream.coordination.cluster import ResourceType
from millstream.coordination.cluster_records import ConfigRecord, MetadataRecord
from millstream.errors import ApiError, CorruptBatch, ErrorCode, StorageError


def setting(number: int, value: str = "1") -> MetadataRecord:
    return ConfigRecord(ResourceType.GROUP, "g", f"n{number}", value)


def test_entry_survives_the_round_trip() -> None:
    nonce = secrets.token_bytes(16)
    records = [setting(number) for number in range(10)]
    data = encode_entry(nonce, records, base_offset=5, now_ms=7)
    assert decode_entry(data) == (nonce, records, 14, len(data))


def test_damaged_entry_is_refused() -> None:
    data = bytearray(encode_entry(bytes(16), [setting(1)], base_offset=0, now_ms=0))
    data[-1] ^= 1
    with pytest.raises(CorruptBatch):
        decode_entry(bytes(data))


def test_entry_too_large_for_a_node_is_refused() -> None:
    records = [setting(1, secrets.token_hex(NODE_BYTES_MAX))]
    with pytest.raises(ApiError, match="split the request") as caught:
        encode_entry(bytes(16), records, base_offset=0, now_ms=0)
    assert caught.value.code is ErrorCode.INVALID_REQUEST


def test_chunks_fit_into_nodes_and_keep_the_order() -> None:
    records = [setting(number, secrets.token_hex(500)) for number in range(4_500)]
    chunks = list(encode_chunks(records, now_ms=0))
    assert len(chunks) > 3
    assert all(len(chunk) <= NODE_BYTES_MAX for chunk in chunks)
    assert [record for chunk in chunks for record in decode_chunk(chunk)] == records


def test_head_and_snapshot_survive_the_round_trip() -> None:
    head = Head(7, 3, "0000000005-aa")
    assert Head.decode(head.encode()) == head
    header = SnapshotHeader(5, 9, 2)
    assert SnapshotHeader.decode("/s", header.encode()) == header


@pytest.mark.parametrize("data", [b"", b"[]", b'{"format": 2, "entry": 1}', b'{"entry": 1}'])
def test_head_of_another_format_is_refused(data: bytes) -> None:
    with pytest.raises(StorageError, match="cannot read"):
        Head.decode(data)


def test_entries_are_named_in_order() -> None:
    assert entry_path(3).endswith("/log/0000000003")
