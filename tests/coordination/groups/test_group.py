"""What groups of every kind share."""

from __future__ import annotations

import uuid

import pytest

from millstream.coordination.groups.group import NoTopics, group_timer, require_group_id
from millstream.errors import ApiError, ErrorCode


@pytest.mark.parametrize("group_id", ["", None])
def test_empty_group_id_is_refused(group_id: str | None) -> None:
    with pytest.raises(ApiError) as error:
        require_group_id(group_id)
    assert error.value.code is ErrorCode.INVALID_GROUP_ID


def test_group_id_may_be_anything_else() -> None:
    require_group_id(" ")
    require_group_id("ünïcödé/§")


def test_timer_name_begins_with_its_group() -> None:
    assert group_timer("g", "session", "m") == ("group", "g", "session", "m")


def test_empty_cluster_has_no_topics() -> None:
    topics = NoTopics()
    some_id = uuid.uuid4()
    assert list(topics.names()) == []
    assert topics.topic_id("orders") is None
    assert topics.topic_name(some_id) is None
    assert topics.partition_count(some_id) is None
