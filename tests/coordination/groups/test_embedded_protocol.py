"""Subscriptions and assignments as classic consumers write them."""

from __future__ import annotations

import pytest

from millstream.coordination.groups.embedded_protocol import (
    EmbeddedAssignment,
    EmbeddedSubscription,
    NamedPartitions,
    by_topic_id,
    by_topic_name,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from millstream.coordination.record_codec import CorruptRecord
from tests.coordination.groups.consumer_harness import FakeTopics

SUBSCRIPTION = EmbeddedSubscription(
    ("a", "b"), b"data", (NamedPartitions("a", (0, 2)),), generation=7, rack_id="r"
)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (0, EmbeddedSubscription(("a", "b"), b"data")),
        (1, EmbeddedSubscription(("a", "b"), b"data", SUBSCRIPTION.owned_partitions)),
        (2, EmbeddedSubscription(("a", "b"), b"data", SUBSCRIPTION.owned_partitions, 7)),
        (3, SUBSCRIPTION),
    ],
)
def test_subscription_has_what_its_version_has(
    version: int, expected: EmbeddedSubscription
) -> None:
    assert decode_subscription(encode_subscription(SUBSCRIPTION, version)) == expected


def test_later_version_is_read_as_the_last_known() -> None:
    later = b"\0\x09" + encode_subscription(SUBSCRIPTION, 3)[2:] + b"something new"
    assert decode_subscription(later) == SUBSCRIPTION


def test_assignment_is_laid_out_as_kafka_lays_it_out() -> None:
    assignment = EmbeddedAssignment((NamedPartitions("t", (0, 1)),))
    encoded = encode_assignment(assignment, 1)
    layout = "0001 00000001 0001 74 00000002 00000000 00000001 ffffffff"
    assert encoded == bytes.fromhex(layout.replace(" ", ""))
    assert decode_assignment(encoded) == assignment


@pytest.mark.parametrize("junk", [b"", b"\0", b"\0\0", b"\xff\xff", b"\0\0\0\0\0\x05"])
def test_bytes_that_are_no_message_are_refused(junk: bytes) -> None:
    with pytest.raises(CorruptRecord):
        decode_subscription(junk)
    with pytest.raises(CorruptRecord):
        decode_assignment(junk)


def test_topics_that_are_gone_are_left_out() -> None:
    topics = FakeTopics(a=3)
    a = topics.topic_id("a")
    assert a is not None
    named = (NamedPartitions("a", (1, 0)), NamedPartitions("gone", (0,)))
    assert by_topic_id(named, topics) == {a: frozenset({0, 1})}
    gone = topics.create("gone", 1)
    topics.delete("gone")
    assert by_topic_name({a: {1, 0}, gone: {0}}, topics) == (NamedPartitions("a", (0, 1)),)
