"""Records of `__consumer_offsets` in Kafka's bytes.

What Apache's own decoder makes of them is asked in tests/conformance.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination import group_records as records
from millstream.coordination.group_records import (
    GROUP_RECORDS,
    RECORD_TYPES,
    ClassicMemberMetadata,
    ClassicMemberRecord,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    EpochedTopicPartitions,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)

TOPIC_ID = uuid.UUID("01020304-0506-0708-090a-0b0c0d0e0f10")


def test_offset_commit_is_written_in_version_4() -> None:
    key, value = GROUP_RECORDS.encode(
        OffsetCommitKey("grp", "topic", 7),
        OffsetCommitValue(42, "meta", 1_000, leader_epoch=3, topic_id=TOPIC_ID),
    )
    assert key == b"\x00\x01\x00\x03grp\x00\x05topic\x00\x00\x00\x07"
    assert value == (
        b"\x00\x04"
        b"\x00\x00\x00\x00\x00\x00\x00\x2a"
        b"\x00\x00\x00\x03"
        b"\x05meta"
        b"\x00\x00\x00\x00\x00\x00\x03\xe8"
        b"\x01\x00\x10" + TOPIC_ID.bytes
    )


def test_offset_commit_with_an_expiry_is_written_in_version_1() -> None:
    _, value = GROUP_RECORDS.encode(
        OffsetCommitKey("g", "t", 0), OffsetCommitValue(1, "", 2, expire_timestamp_ms=3)
    )
    assert value == (
        b"\x00\x01"
        b"\x00\x00\x00\x00\x00\x00\x00\x01"
        b"\x00\x00"
        b"\x00\x00\x00\x00\x00\x00\x00\x02"
        b"\x00\x00\x00\x00\x00\x00\x00\x03"
    )


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (0, b"\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01m\x00\x00\x00\x00\x00\x00\x00\x02"),
        (2, b"\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01m\x00\x00\x00\x00\x00\x00\x00\x02"),
        (
            3,
            b"\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff"
            b"\x00\x01m\x00\x00\x00\x00\x00\x00\x00\x02",
        ),
    ],
)
def test_offset_commits_of_older_brokers_are_read(version: int, body: bytes) -> None:
    key, _ = GROUP_RECORDS.encode(OffsetCommitKey("g", "t", 0), None)
    decoded = GROUP_RECORDS.decode(key, version.to_bytes(2) + body)
    assert decoded == (OffsetCommitKey("g", "t", 0), OffsetCommitValue(1, "m", 2))


def test_group_metadata_is_written_in_version_3() -> None:
    member = ClassicMemberRecord("m", "c", "/h", 60_000, 10_000, b"sub", b"asg", "i")
    key, value = GROUP_RECORDS.encode(
        GroupMetadataKey("g"), GroupMetadataValue("consumer", 5, "range", "m", 9, (member,))
    )
    assert key == b"\x00\x02\x00\x01g"
    assert value == (
        b"\x00\x03"
        b"\x00\x08consumer"
        b"\x00\x00\x00\x05"
        b"\x00\x05range"
        b"\x00\x01m"
        b"\x00\x00\x00\x00\x00\x00\x00\x09"
        b"\x00\x00\x00\x01"
        b"\x00\x01m\x00\x01i\x00\x01c\x00\x02/h"
        b"\x00\x00\xea\x60\x00\x00\x27\x10"
        b"\x00\x00\x00\x03sub\x00\x00\x00\x03asg"
    )


def test_empty_group_has_null_protocol_and_leader() -> None:
    _, value = GROUP_RECORDS.encode(GroupMetadataKey("g"), GroupMetadataValue("", 0, None, None, 9))
    assert value == (
        b"\x00\x03\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"
        b"\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00"
    )


def test_consumer_group_epoch_carries_its_hash_as_a_tag() -> None:
    _, value = GROUP_RECORDS.encode(
        ConsumerGroupMetadataKey("g"), ConsumerGroupMetadataValue(3, metadata_hash=1)
    )
    assert value == b"\x00\x00\x00\x00\x00\x03\x01\x00\x08\x00\x00\x00\x00\x00\x00\x00\x01"


def test_member_metadata_carries_a_classic_member_as_a_nullable_struct() -> None:
    value = ConsumerGroupMemberMetadataValue(
        None,
        None,
        "c",
        "h",
        ("t",),
        None,
        -1,
        None,
        ClassicMemberMetadata(10, (ClassicProtocol("range", b"x"),)),
    )
    _, encoded = GROUP_RECORDS.encode(ConsumerGroupMemberMetadataKey("g", "m"), value)
    assert encoded == (
        b"\x00\x00"
        b"\x00\x00"
        b"\x02c\x02h"
        b"\x02\x02t"
        b"\x00"
        b"\xff\xff\xff\xff"
        b"\x00"
        b"\x01\x00\x10"  # one tag: number 0, 16 bytes
        b"\x01"
        b"\x00\x00\x00\x0a"
        b"\x02\x06range\x02x\x00"
        b"\x00"
    )


def test_current_assignment_carries_epochs_as_a_tag() -> None:
    value = ConsumerGroupCurrentMemberAssignmentValue(
        2, 1, 0, (EpochedTopicPartitions(TOPIC_ID, (4,), (2,)),)
    )
    _, encoded = GROUP_RECORDS.encode(ConsumerGroupCurrentMemberAssignmentKey("g", "m"), value)
    assert encoded == (
        b"\x00\x00"
        b"\x00\x00\x00\x02\x00\x00\x00\x01\x00"
        b"\x02" + TOPIC_ID.bytes + b"\x02\x00\x00\x00\x04"
        b"\x01\x00\x05\x02\x00\x00\x00\x02"
        b"\x01"
        b"\x00"
    )


def test_legacy_and_streams_records_are_skipped() -> None:
    for number in (0, 9, 17, 23):
        assert GROUP_RECORDS.decode(number.to_bytes(2) + b"\x00\x01g", b"\x00\x00") is None


TEXT = st.text(max_size=5)
BY_FIELD_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": TEXT,
    "str | None": st.none() | TEXT,
    "bytes": st.binary(max_size=5),
    "uuid.UUID": st.uuids(),
    "tuple[str, ...]": st.lists(TEXT, max_size=3).map(tuple),
    "tuple[int, ...]": st.lists(st.integers(0, 9), max_size=3).map(tuple),
    "tuple[int, ...] | None": st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
}


def instances(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Any instance of a record's dataclass."""
    fields = {name: of_type(annotation) for name, annotation in cls.__annotations__.items()}
    if cls is OffsetCommitValue:
        fields["expire_timestamp_ms"] = st.just(-1)  # with one, version 1 drops other fields
    return st.builds(cls, **fields)


def of_type(annotation: str) -> st.SearchStrategy[Any]:
    if annotation == "int":
        return st.integers(0, 127)
    if annotation in BY_FIELD_TYPE:
        return BY_FIELD_TYPE[annotation]
    if annotation.endswith(" | None"):
        return st.none() | of_type(annotation.removesuffix(" | None"))
    if annotation.startswith("tuple["):
        element = getattr(records, annotation.removeprefix("tuple[").removesuffix(", ...]"))
        return st.lists(instances(element), max_size=2).map(tuple)
    return instances(getattr(records, annotation))


@pytest.mark.parametrize("number", [record_type.number for record_type in RECORD_TYPES])
@given(st.data())
def test_record_of_every_type_comes_back_as_it_was(number: int, data: st.DataObject) -> None:
    record_type = next(it for it in RECORD_TYPES if it.number == number)
    key = data.draw(instances(record_type.key.cls))
    value = data.draw(instances(record_type.value.cls))
    assert GROUP_RECORDS.decode(*GROUP_RECORDS.encode(key, value)) == (key, value)
    assert GROUP_RECORDS.decode(*GROUP_RECORDS.encode(key, None)) == (key, None)
