"""Apache Kafka's own decoder reads our records of `__consumer_offsets`, every type of them."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

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
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    EpochedTopicPartitions,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyPartitionRacks,
    LegacyTopicMetadata,
    NamedTopic,
    NamedTopicPartitions,
    OffsetCommitKey,
    OffsetCommitValue,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicPartitions,
)
from millstream.records.record import Record, encode_batch
from tests.peers.java_runtime import java_program

pytestmark = pytest.mark.java

ID = uuid.UUID(int=5)
ID_TEXT = "AAAAAAAAAAAAAAAAAAAABQ"  # how Kafka writes it: base 64
ON_TOPIC = {"topicId": ID_TEXT, "partitions": [1, 2]}

# Our record, then what Kafka's decoder makes of its value; None for a tombstone.
CASES: list[tuple[Any, Any, dict[str, Any] | None]] = [
    (
        OffsetCommitKey("g", "t", 3),
        OffsetCommitValue(42, "meta", 1000, 3, topic_id=ID),
        {
            "offset": 42,
            "leaderEpoch": 3,
            "metadata": "meta",
            "commitTimestamp": 1000,
            "topicId": ID_TEXT,
        },
    ),
    (
        OffsetCommitKey("g", "t", 4),
        OffsetCommitValue(42, "", 1000, expire_timestamp_ms=77),
        {"offset": 42, "metadata": "", "commitTimestamp": 1000, "expireTimestamp": 77},
    ),
    (OffsetCommitKey("g", "t", 4), None, None),
    (
        GroupMetadataKey("g"),
        GroupMetadataValue(
            "consumer",
            5,
            "range",
            "m",
            9,
            (ClassicMemberRecord("m", "c", "/h", 60_000, 10_000, b"sub", b"asg", "i"),),
        ),
        {
            "protocolType": "consumer",
            "generation": 5,
            "protocol": "range",
            "leader": "m",
            "currentStateTimestamp": 9,
            "members": [
                {
                    "memberId": "m",
                    "groupInstanceId": "i",
                    "clientId": "c",
                    "clientHost": "/h",
                    "rebalanceTimeout": 60_000,
                    "sessionTimeout": 10_000,
                    "subscription": "c3Vi",
                    "assignment": "YXNn",
                }
            ],
        },
    ),
    (
        GroupMetadataKey("g"),
        GroupMetadataValue("", 0, None, None, 9),
        {
            "protocolType": "",
            "generation": 0,
            "protocol": None,
            "leader": None,
            "currentStateTimestamp": 9,
            "members": [],
        },
    ),
    (
        ConsumerGroupMetadataKey("g"),
        ConsumerGroupMetadataValue(4, 99),
        {"epoch": 4, "metadataHash": 99},
    ),
    (
        ConsumerGroupPartitionMetadataKey("g"),
        ConsumerGroupPartitionMetadataValue(
            (LegacyTopicMetadata(ID, "t", 3, (LegacyPartitionRacks(0, ("r",)),)),)
        ),
        {
            "topics": [
                {
                    "topicId": ID_TEXT,
                    "topicName": "t",
                    "numPartitions": 3,
                    "partitionMetadata": [{"partition": 0, "racks": ["r"]}],
                }
            ]
        },
    ),
    (
        ConsumerGroupMemberMetadataKey("g", "m"),
        ConsumerGroupMemberMetadataValue(
            "i",
            None,
            "c",
            "h",
            ("t",),
            "re.*",
            1000,
            "uniform",
            ClassicMemberMetadata(10, (ClassicProtocol("range", b"x"),)),
        ),
        {
            "instanceId": "i",
            "rackId": None,
            "clientId": "c",
            "clientHost": "h",
            "subscribedTopicNames": ["t"],
            "subscribedTopicRegex": "re.*",
            "rebalanceTimeoutMs": 1000,
            "serverAssignor": "uniform",
            "classicMemberMetadata": {
                "sessionTimeoutMs": 10,
                "supportedProtocols": [{"name": "range", "metadata": "eA=="}],
            },
        },
    ),
    (
        ConsumerGroupTargetAssignmentMetadataKey("g"),
        ConsumerGroupTargetAssignmentMetadataValue(4, 123),
        {"assignmentEpoch": 4, "assignmentTimestamp": 123},
    ),
    (
        ConsumerGroupTargetAssignmentMemberKey("g", "m"),
        ConsumerGroupTargetAssignmentMemberValue((TopicPartitions(ID, (1, 2)),)),
        {"topicPartitions": [ON_TOPIC]},
    ),
    (
        ConsumerGroupCurrentMemberAssignmentKey("g", "m"),
        ConsumerGroupCurrentMemberAssignmentValue(
            4,
            3,
            0,
            (EpochedTopicPartitions(ID, (1, 2), (3, 4)),),
            (EpochedTopicPartitions(ID, (1, 2)),),
        ),
        {
            "memberEpoch": 4,
            "previousMemberEpoch": 3,
            "state": 0,
            "assignedPartitions": [{**ON_TOPIC, "assignmentEpochs": [3, 4]}],
            "partitionsPendingRevocation": [ON_TOPIC],
        },
    ),
    (
        ConsumerGroupRegularExpressionKey("g", "re.*"),
        ConsumerGroupRegularExpressionValue(("t", "u"), 7, 8),
        {"topics": ["t", "u"], "version": 7, "timestamp": 8},
    ),
    (
        ShareGroupMemberMetadataKey("g", "m"),
        ShareGroupMemberMetadataValue("r", "c", "h", ("t",)),
        {"rackId": "r", "clientId": "c", "clientHost": "h", "subscribedTopicNames": ["t"]},
    ),
    (
        ShareGroupMetadataKey("g"),
        ShareGroupMetadataValue(3, 4),
        {"epoch": 3, "metadataHash": 4},
    ),
    (
        ShareGroupTargetAssignmentMetadataKey("g"),
        ShareGroupTargetAssignmentMetadataValue(3, 4),
        {"assignmentEpoch": 3, "assignmentTimestamp": 4},
    ),
    (
        ShareGroupTargetAssignmentMemberKey("g", "m"),
        ShareGroupTargetAssignmentMemberValue((TopicPartitions(ID, (1, 2)),)),
        {"topicPartitions": [ON_TOPIC]},
    ),
    (
        ShareGroupCurrentMemberAssignmentKey("g", "m"),
        ShareGroupCurrentMemberAssignmentValue(3, 2, 1, (TopicPartitions(ID, (1, 2)),)),
        {
            "memberEpoch": 3,
            "previousMemberEpoch": 2,
            "state": 1,
            "assignedPartitions": [ON_TOPIC],
        },
    ),
    (
        ShareGroupStatePartitionMetadataKey("g"),
        ShareGroupStatePartitionMetadataValue(
            (NamedTopicPartitions(ID, "t", (1, 2)),),
            (NamedTopicPartitions(ID, "u", (1, 2)),),
            (NamedTopic(ID, "x"),),
        ),
        {
            "initializingTopics": [{**ON_TOPIC, "topicName": "t"}],
            "initializedTopics": [{**ON_TOPIC, "topicName": "u"}],
            "deletingTopics": [{"topicId": ID_TEXT, "topicName": "x"}],
        },
    ),
]


def decoded_by_kafka(segment: Path) -> list[dict[str, Any] | None]:
    """What DumpLogSegments prints of each record's value."""
    command = java_program("org.apache.kafka.tools.DumpLogSegments")
    arguments = ["--offsets-decoder", "--files", str(segment)]
    dump = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout
    assert "isvalid: true" in dump
    payloads = [
        line.split(" payload: ", 1)[1] for line in dump.splitlines() if " payload: " in line
    ]
    return [None if it == "<DELETE>" else json.loads(it)["data"] for it in payloads]


def test_kafka_decodes_every_type_of_record(tmp_path: Path) -> None:
    records = [
        Record(offset, 1000, *GROUP_RECORDS.encode(key, value))
        for offset, (key, value, _) in enumerate(CASES)
    ]
    segment = tmp_path / "00000000000000000000.log"
    segment.write_bytes(encode_batch(records))
    assert decoded_by_kafka(segment) == [expected for _, _, expected in CASES]


def test_cases_cover_every_type_of_record() -> None:
    covered = {type(key) for key, _, _ in CASES}
    assert covered == {record_type.key.cls for record_type in RECORD_TYPES}
