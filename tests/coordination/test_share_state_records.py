"""Records of `__share_group_state` in Kafka's bytes, which Kafka's own decoder reads."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.record_codec import CorruptRecord
from millstream.coordination.share_state import DeliveryState, StateBatch
from millstream.coordination.share_state_records import (
    SHARE_STATE_RECORDS,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from millstream.records.record import Record, encode_batch
from tests.peers.java_runtime import java_program

ID = uuid.UUID(int=5)
ID_TEXT = "AAAAAAAAAAAAAAAAAAAABQ"  # how Kafka writes it: base 64
KEY = {"groupId": "g", "topicId": ID_TEXT, "partition": 3}
BATCHES = (
    StateBatch(10, 12, DeliveryState.ACKNOWLEDGED, 1),
    StateBatch(13, 13, DeliveryState.AVAILABLE, 2, due_ms=1_700_000_000_000),
)
BATCHES_OF_KAFKA = [
    {"firstOffset": 10, "lastOffset": 12, "deliveryState": 2, "deliveryCount": 1},
    {"firstOffset": 13, "lastOffset": 13, "deliveryState": 0, "deliveryCount": 2},
]
SNAPSHOT = ShareSnapshotValue(4, 3, 2, 10, 1_000, 2_000, BATCHES, 7)
UPDATE = ShareUpdateValue(4, 2, 10, BATCHES, 7)

# Our record, then its type and what Kafka's decoder makes of its value; None for a tombstone.
CASES: list[tuple[Any, Any, int, dict[str, Any] | None]] = [
    (
        ShareSnapshotKey("g", ID, 3),
        SNAPSHOT,
        0,
        {
            "snapshotEpoch": 4,
            "stateEpoch": 3,
            "leaderEpoch": 2,
            "startOffset": 10,
            "deliveryCompleteCount": 7,
            "createTimestamp": 1_000,
            "writeTimestamp": 2_000,
            "stateBatches": BATCHES_OF_KAFKA,
        },
    ),
    (
        ShareUpdateKey("g", ID, 3),
        UPDATE,
        1,
        {
            "snapshotEpoch": 4,
            "leaderEpoch": 2,
            "startOffset": 10,
            "deliveryCompleteCount": 7,
            "stateBatches": BATCHES_OF_KAFKA,
        },
    ),
    (ShareSnapshotKey("g", ID, 3), None, 0, None),
]


def test_update_has_kafkas_bytes() -> None:
    value = ShareUpdateValue(1, 2, 3, (StateBatch(4, 5, DeliveryState.ARCHIVED, 6),))
    key, encoded = SHARE_STATE_RECORDS.encode(ShareUpdateKey("g", ID, 9), value)
    assert key == b"\x00\x01\x00\x01g" + ID.bytes + b"\x00\x00\x00\x09"
    assert encoded is not None
    assert encoded.hex(" ", 1) == (
        "00 00  00 00 00 01  00 00 00 02  00 00 00 00 00 00 00 03  02  "
        "00 00 00 00 00 00 00 04  00 00 00 00 00 00 00 05  04  00 06  00  00"
    ).replace("  ", " ")


def test_due_time_is_a_tagged_field_that_others_skip() -> None:
    batch = StateBatch(4, 5, DeliveryState.AVAILABLE, 1)
    plain = SHARE_STATE_RECORDS.encode(
        ShareUpdateKey("g", ID, 9), ShareUpdateValue(1, 2, 3, (batch,))
    )[1]
    delayed = SHARE_STATE_RECORDS.encode(
        ShareUpdateKey("g", ID, 9), ShareUpdateValue(1, 2, 3, (batch._replace(due_ms=77),))
    )[1]
    assert plain is not None
    assert delayed is not None
    due = b"\x01" + b"\xe8\x07" + b"\x08" + (77).to_bytes(8)  # one field: tag 1000, 8 bytes
    assert delayed == plain[:-2] + due + plain[-1:]


STATES = st.sampled_from(list(DeliveryState))
INT64 = st.integers(0, 2**63 - 1)
INT32 = st.integers(-1, 2**31 - 1)
STATE_BATCHES = st.lists(
    st.builds(StateBatch, INT64, INT64, STATES, st.integers(0, 32767), INT64), max_size=4
).map(tuple)


@given(
    st.builds(ShareSnapshotValue, INT32, INT32, INT32, INT64, INT64, INT64, STATE_BATCHES, INT32)
    | st.builds(ShareUpdateValue, INT32, INT32, INT64, STATE_BATCHES, INT32)
    | st.none()
)
def test_records_survive_their_bytes(value: Any) -> None:
    key = (ShareUpdateKey if isinstance(value, ShareUpdateValue) else ShareSnapshotKey)("g", ID, 1)
    assert SHARE_STATE_RECORDS.decode(*SHARE_STATE_RECORDS.encode(key, value)) == (key, value)


def test_state_that_nobody_knows_is_corrupt() -> None:
    key, value = SHARE_STATE_RECORDS.encode(ShareUpdateKey("g", ID, 9), UPDATE)
    assert value is not None
    state_at = 2 + 4 + 4 + 8 + 1 + 8 + 8
    broken = value[:state_at] + b"\x09" + value[state_at + 1 :]
    with pytest.raises(CorruptRecord, match="invalid DeliveryState: 9"):
        SHARE_STATE_RECORDS.decode(key, broken)


def test_updates_belong_to_the_snapshot_of_the_same_subject() -> None:
    snapshot, _ = SHARE_STATE_RECORDS.encode(ShareSnapshotKey("g", ID, 3), None)
    update, _ = SHARE_STATE_RECORDS.encode(ShareUpdateKey("g", ID, 3), None)
    assert SHARE_STATE_RECORDS.has_updates
    assert SHARE_STATE_RECORDS.is_update(update)
    assert not SHARE_STATE_RECORDS.is_update(snapshot)
    assert SHARE_STATE_RECORDS.subject(update) == SHARE_STATE_RECORDS.subject(snapshot)


@pytest.mark.java
def test_kafka_decodes_the_records_and_skips_the_due_time(tmp_path: Path) -> None:
    records = [
        Record(offset, 1000, *SHARE_STATE_RECORDS.encode(key, value))
        for offset, (key, value, _, _) in enumerate(CASES)
    ]
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(encode_batch(records))
    command = java_program("org.apache.kafka.tools.DumpLogSegments")
    arguments = ["--share-group-state-decoder", "--files", str(segment)]
    dump = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout
    assert "isvalid: true" in dump
    lines = [line for line in dump.splitlines() if " payload: " in line]
    assert len(lines) == len(CASES)
    for line, (_, _, number, expected) in zip(lines, CASES, strict=True):
        key, payload = line.split(" key: ", 1)[1].split(" payload: ", 1)
        assert json.loads(key) == {"type": str(number), "data": KEY}
        found = None if payload == "<DELETE>" else json.loads(payload)["data"]
        assert found == expected
