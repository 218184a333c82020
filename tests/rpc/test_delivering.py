"""Replies in transactions and without: all or nothing, and what brokers refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Message

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.rpc.answered import AnsweredLog
from millstream.rpc.delivering import (
    Answer,
    PlainDelivery,
    Refused,
    TransactionalDelivery,
    Undelivered,
)
from millstream.rpc.headers import Request
from millstream.rpc.intakes import GroupIntake
from millstream.rpc.replies import Reply
from millstream.testing.pytest_plugin import SharedBroker
from tests.rpc.scene import make_topics, read_replies, read_requests, send


class Scene:
    """A server's parts, and requests that it has got."""

    def __init__(self, millstream: SharedBroker, cluster: Cluster) -> None:
        self.millstream = millstream
        self.topic, self.replies = make_topics(millstream)
        self.group = f"{self.topic}-servers"
        self.log = AnsweredLog.create(cluster, f"{self.group}-answered", self.topic, 600)
        self.settings = {"bootstrap.servers": millstream.bootstrap_servers}
        self.intake = self.member()
        send(millstream, self.topic, (b"a", []), (b"b", []), (b"c", []))

    def member(self) -> GroupIntake:
        made = GroupIntake(
            {**self.settings, "group.id": self.group}, transactional=True, on_lost=lambda: None
        )
        made.subscribe(self.topic)
        return made

    def read(self) -> list[Message]:
        return read_requests(self.intake, 1)

    def answer(self, message: Message, reply_topic: str = "") -> Answer:
        value = message.value() or b""
        request = Request(
            value,
            correlation_id=value,
            reply_topic=reply_topic or self.replies,
            reply_partition=0,
        )
        return Answer(message, request, Reply(value.upper()), is_new=True, is_sent=True)

    def learned(self) -> dict[bytes, bytes | None]:
        found: dict[bytes, bytes | None] = {}
        self.log.catch_up([0], lambda key, reply, _: found.update({key: reply.value}))
        return found


@pytest.fixture
def scene(millstream: SharedBroker) -> Iterator[Scene]:
    with Cluster(millstream.bootstrap_servers) as cluster:
        made = Scene(millstream, cluster)
        yield made
        made.intake.close()


def test_replies_records_and_offsets_are_one_transaction(scene: Scene) -> None:
    delivery = TransactionalDelivery(scene.settings, scene.log, scene.intake, scene.group)
    messages = scene.read()
    delivery.deliver([scene.answer(it) for it in messages])
    expected = {it.value() or b"": (it.value() or b"").upper() for it in messages}
    assert dict(read_replies(scene.millstream, scene.replies, len(messages))) == expected
    assert scene.learned() == expected
    scene.intake.close()
    scene.intake = scene.member()
    if len(messages) < 3:  # what was delivered does not come again
        assert scene.read()[0].offset() == messages[-1].offset() + 1


def test_what_a_broker_refuses_leaves_nothing_behind(
    scene: Scene, millstream: SharedBroker
) -> None:
    small = f"{scene.topic}-small"
    with Cluster(millstream.bootstrap_servers) as cluster:
        create_topics(cluster, [NewTopic(small, 1, {"max.message.bytes": "100"})])
    delivery = TransactionalDelivery(scene.settings, scene.log, scene.intake, scene.group)
    first = scene.read()[0]
    large = scene.answer(first, small)._replace(reply=Reply(b"x" * 500))
    with pytest.raises(Refused):
        delivery.deliver([large])
    assert scene.learned() == {}
    delivery.deliver([scene.answer(first)])  # the producer goes on
    assert scene.learned() == {b"a": b"A"}


def test_a_server_that_left_the_group_delivers_nothing(scene: Scene) -> None:
    delivery = TransactionalDelivery(scene.settings, scene.log, scene.intake, scene.group)
    messages = scene.read()
    former = scene.intake.membership
    scene.intake.close()

    class Former:
        membership = former
        offsets_after = scene.intake.offsets_after

    delivery._intake = Former()  # type: ignore[assignment]
    with pytest.raises(Undelivered):
        delivery.deliver([scene.answer(it) for it in messages])
    assert scene.learned() == {}
    scene.intake = scene.member()
    assert scene.read()[0].offset() == 0


def test_without_a_transaction_replies_are_recorded_first(scene: Scene) -> None:
    delivery = PlainDelivery(scene.settings, scene.log)
    message = scene.read()[0]
    delivery.deliver([scene.answer(message)])
    assert read_replies(scene.millstream, scene.replies, 1) == [(b"a", b"A")]
    assert scene.learned() == {b"a": b"A"}
    with pytest.raises(Refused):
        delivery.deliver([scene.answer(message, "a\0b")])
    delivery.close()
