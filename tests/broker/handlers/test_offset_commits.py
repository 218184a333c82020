"""What OffsetCommit and TxnOffsetCommit share: each partition of a request gets its own answer."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

from millstream.broker.handlers._offset_commits import Commit, commit_topics, refuse_topics
from millstream.broker.services import Client
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import (
    DIRECTORY_UNASSIGNED,
    PartitionRecord,
    TopicRecord,
)
from millstream.coordination.groups.offsets import CommittedPartition, TopicCommit
from millstream.errors import ApiError, ErrorCode

ORDERS = uuid.UUID(int=7)
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def image() -> ClusterImage:
    """One topic, `orders`, of two partitions."""
    partitions = [
        PartitionRecord(index, ORDERS, (1,), (1,), 1, directories=(DIRECTORY_UNASSIGNED,))
        for index in range(2)
    ]
    return ClusterImage().apply([TopicRecord("orders", ORDERS), *partitions], 0)


def topic(name: str, *partitions: int, topic_id: uuid.UUID | None = None) -> Any:
    positions = [
        SimpleNamespace(partition_index=it, committed_offset=it + 10, committed_metadata=None)
        for it in partitions
    ]
    return SimpleNamespace(name=name, topic_id=topic_id, partitions=positions)


def errors(topics: list[Any], commit: Commit, *, by_id: bool = False) -> list[list[ErrorCode]]:
    context: Any = SimpleNamespace(
        services=SimpleNamespace(metadata=SimpleNamespace(image=image())), client=Client()
    )
    answered = asyncio.run(commit_topics(context, topics, by_id=by_id, commit=commit))
    return [[it["error_code"] for it in answer["partitions"]] for answer in answered]


async def commit_all(topics: tuple[TopicCommit, ...]) -> list[CommittedPartition]:
    return [CommittedPartition(it.topic, each.partition) for it in topics for each in it.partitions]


async def refuse(topics: tuple[TopicCommit, ...]) -> list[CommittedPartition]:
    raise ApiError(ErrorCode.ILLEGAL_GENERATION)


async def nobody(topics: tuple[TopicCommit, ...]) -> list[CommittedPartition]:
    raise AssertionError("there is nothing to commit")


def test_unknown_partitions_do_not_keep_others_from_being_committed() -> None:
    asked = [topic("nowhere", 0), topic("orders", 1, 2, 0, -1)]
    none = ErrorCode.NONE
    assert errors(asked, commit_all) == [[UNKNOWN], [none, UNKNOWN, none, UNKNOWN]]


def test_refusal_is_that_of_the_partitions_that_exist() -> None:
    asked = [topic("orders", 0, 9), topic("nowhere", 0)]
    assert errors(asked, refuse) == [[ErrorCode.ILLEGAL_GENERATION, UNKNOWN], [UNKNOWN]]


def test_nothing_is_committed_where_nothing_exists() -> None:
    assert errors([topic("nowhere", 0), topic("orders", 9)], nobody) == [[UNKNOWN], [UNKNOWN]]


def test_topics_are_found_by_id() -> None:
    asked = [topic("", 0, topic_id=ORDERS), topic("", 0, topic_id=uuid.uuid4()), topic("", 0)]
    unknown_id = ErrorCode.UNKNOWN_TOPIC_ID
    assert errors(asked, commit_all, by_id=True) == [[ErrorCode.NONE], [unknown_id], [unknown_id]]


def test_refused_request_is_refused_for_each_partition() -> None:
    refused = refuse_topics([topic("orders", 0, 1), topic("nowhere", 0)], UNKNOWN)
    assert [[it["error_code"] for it in each["partitions"]] for each in refused] == [
        [UNKNOWN, UNKNOWN],
        [UNKNOWN],
    ]
