"""What the persister's APIs share: partitions asked for together, answered each for itself."""

from __future__ import annotations

import asyncio
import uuid
from types import SimpleNamespace
from typing import Any

from millstream.broker.handlers._share_state_requests import answer_partitions, outcome
from millstream.broker.services import Client
from millstream.coordination.share_state import SharePartitionKey
from millstream.errors import ApiError, ErrorCode

CONTEXT: Any = SimpleNamespace(client=Client())
TOPIC, OTHER_TOPIC = uuid.UUID(int=1), uuid.UUID(int=2)


def request(*topics: tuple[uuid.UUID, list[int]], group_id: str = "g") -> Any:
    return SimpleNamespace(
        group_id=group_id,
        topics=[
            SimpleNamespace(
                topic_id=topic_id, partitions=[SimpleNamespace(partition=it) for it in partitions]
            )
            for topic_id, partitions in topics
        ],
    )


def test_answers_stand_in_the_order_of_the_request() -> None:
    under_way: list[SharePartitionKey] = []

    async def answer(key: SharePartitionKey, partition: Any) -> dict[str, Any]:
        under_way.append(key)
        await asyncio.sleep(0)
        assert len(under_way) == 3  # nobody waits for another
        if key.partition == 1:
            raise ApiError(ErrorCode.FENCED_STATE_EPOCH, "over")
        return {"value": (key.topic_id, partition.partition)}

    asked = request((TOPIC, [0, 1]), (OTHER_TOPIC, [0]))
    answered = asyncio.run(answer_partitions(CONTEXT, asked, answer, when_failed={"value": None}))
    first, second = answered["results"]
    assert (first["topic_id"], second["topic_id"]) == (TOPIC, OTHER_TOPIC)
    assert [it["value"] for it in first["partitions"]] == [(TOPIC, 0), None]
    assert [it["error_code"] for it in first["partitions"]] == [
        ErrorCode.NONE,
        ErrorCode.FENCED_STATE_EPOCH,
    ]
    assert [it["value"] for it in second["partitions"]] == [(OTHER_TOPIC, 0)]


def test_empty_group_id_is_not_asked_about() -> None:
    async def nobody(key: SharePartitionKey, partition: Any) -> dict[str, Any]:
        raise AssertionError("no group was named")

    asked = request((TOPIC, [0]), group_id="")
    assert asyncio.run(answer_partitions(CONTEXT, asked, nobody)) == {"results": []}


def test_outcome_says_what_went_wrong() -> None:
    key = SharePartitionKey("g", TOPIC, 5)
    assert outcome(key, None) == {"partition": 5, "error_code": 0, "error_message": None}
    failed = outcome(key, ApiError(ErrorCode.INVALID_REQUEST, "no"))
    assert (failed["error_code"], failed["error_message"]) == (ErrorCode.INVALID_REQUEST, "no")
