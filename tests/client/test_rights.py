"""Errors that name the right which a user lacks."""

from __future__ import annotations

from millstream.client.rights import with_right
from millstream.errors import ErrorCode


def test_right_is_that_of_the_request_and_the_resource() -> None:
    topic, group = ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED
    assert with_right("a", "fetch", topic) == "a; the user needs Read on the topic"
    assert with_right("a", "produce", topic) == "a; the user needs Write on the topic"
    assert with_right("a", "offset_commit", group) == "a; the user needs Read on the group"
    cluster = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert with_right("a", "init_producer_id", cluster).endswith("IdempotentWrite on the cluster")


def test_other_messages_stay_as_they_are() -> None:
    assert with_right("a", "fetch", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) == "a"
    assert with_right("a", "nothing", ErrorCode.CLUSTER_AUTHORIZATION_FAILED) == "a"
