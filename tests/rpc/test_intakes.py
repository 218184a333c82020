"""Members of groups that get requests: what they get again, and what they commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from millstream.rpc.intakes import GroupIntake, ShareIntake
from millstream.rpc.settings import make_cluster, start_share_group_at_the_beginning
from millstream.testing.pytest_plugin import SharedBroker
from tests.rpc.scene import make_topics, read_requests, send


def settings(millstream: SharedBroker, topic: str) -> dict[str, Any]:
    return {"bootstrap.servers": millstream.bootstrap_servers, "group.id": f"{topic}-servers"}


@pytest.fixture
def topic(millstream: SharedBroker) -> str:
    name, _ = make_topics(millstream)
    send(millstream, name, (b"a", []), (b"b", []), (b"c", []))
    return name


@pytest.fixture
def group(millstream: SharedBroker, topic: str) -> Iterator[GroupIntake]:
    intake = GroupIntake(settings(millstream, topic), transactional=False, on_lost=lambda: None)
    intake.subscribe(topic)
    yield intake
    intake.close()


def test_released_requests_come_again(group: GroupIntake) -> None:
    messages = read_requests(group, 3)
    assert [it.value() for it in messages] == [b"a", b"b", b"c"]
    assert group.to_learn(messages) == {0}
    group.learned({0})
    assert group.to_learn(messages) == set()
    group.release(messages[1:])
    again = read_requests(group, 2)
    assert [it.value() for it in again] == [b"b", b"c"]
    (after,) = group.offsets_after(again)
    assert (after.partition, after.offset) == (0, 3)


def test_what_was_accepted_does_not_come_again(
    millstream: SharedBroker, topic: str, group: GroupIntake
) -> None:
    messages = read_requests(group, 3)
    group.accept(messages[:2])
    group.close()
    lost: list[int] = []
    other = GroupIntake(
        settings(millstream, topic), transactional=False, on_lost=lambda: lost.append(1)
    )
    other.subscribe(topic)
    assert [it.value() for it in read_requests(other, 1)] == [b"c"]
    other.close()
    assert lost == [1]


def test_share_groups_get_released_requests_again(millstream: SharedBroker, topic: str) -> None:
    given = settings(millstream, topic)
    with make_cluster(millstream.bootstrap_servers, None) as cluster:
        start_share_group_at_the_beginning(cluster, given["group.id"])
    intake = ShareIntake(given)
    intake.subscribe(topic)
    messages = read_requests(intake, 3)
    assert intake.to_learn(messages) == {0}
    intake.accept([it for it in messages if it.value() != b"b"])
    intake.release([it for it in messages if it.value() == b"b"])
    again = read_requests(intake, 1)
    assert [it.value() for it in again] == [b"b"]
    intake.accept(again)
    intake.close()
