"""What makes a heartbeat a full one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.coordination.groups.consumer_messages import ConsumerHeartbeat

FULL = ConsumerHeartbeat("g", "m", 3, rebalance_timeout_ms=1, topic_names=(), owned={})


def test_heartbeat_that_says_everything_is_full() -> None:
    assert FULL.is_full
    assert replace(FULL, topic_names=None, topic_regex="").is_full


@pytest.mark.parametrize(
    "missing", [{"rebalance_timeout_ms": -1}, {"topic_names": None}, {"owned": None}]
)
def test_heartbeat_that_leaves_something_out_is_not_full(missing: dict[str, None]) -> None:
    assert not replace(FULL, **missing).is_full
