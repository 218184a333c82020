"""Requests that no group could take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from millstream.coordination.groups.consumer_messages import ConsumerHeartbeat
from millstream.coordination.groups.consumer_validation import validate_heartbeat
from millstream.errors import ApiError, ErrorCode

JOIN = ConsumerHeartbeat("g", "m", 0, rebalance_timeout_ms=1_000, topic_names=("t",), owned={})
BEAT = ConsumerHeartbeat("g", "m", 3)


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (JOIN, {"group_id": ""}),
        (JOIN, {"member_id": ""}),
        (BEAT, {"member_id": "", "api_version": 0}),
        (BEAT, {"member_epoch": -1, "member_id": "", "api_version": 0}),
        (JOIN, {"instance_id": ""}),
        (JOIN, {"rack_id": ""}),
        (JOIN, {"rebalance_timeout_ms": -1}),
        (JOIN, {"owned": None}),
        (JOIN, {"owned": {UUID(int=1): frozenset({0})}}),
        (JOIN, {"topic_names": None}),
        (BEAT, {"member_epoch": -2}),
        (BEAT, {"member_epoch": -3}),
    ],
)
def test_request_that_breaks_a_rule_is_invalid(
    request_: ConsumerHeartbeat, fields: dict[str, Any]
) -> None:
    with pytest.raises(ApiError) as refused:
        validate_heartbeat(replace(request_, **fields), ("uniform",))
    assert refused.value.code is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    "request_",
    [
        JOIN,
        BEAT,
        replace(JOIN, member_id="", api_version=0),
        replace(JOIN, topic_names=(), server_assignor="uniform"),
        replace(JOIN, topic_names=None, topic_regex=""),
        replace(BEAT, member_epoch=-1),
        replace(BEAT, member_epoch=-2, instance_id="i"),
    ],
)
def test_request_that_keeps_the_rules_passes(request_: ConsumerHeartbeat) -> None:
    validate_heartbeat(request_, ("uniform",))


def test_assignor_that_the_broker_does_not_offer_is_unsupported() -> None:
    with pytest.raises(ApiError, match="Supported assignors: uniform") as refused:
        validate_heartbeat(replace(JOIN, server_assignor="range"), ("uniform",))
    assert refused.value.code is ErrorCode.UNSUPPORTED_ASSIGNOR
