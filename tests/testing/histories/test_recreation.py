"""The client that recreates a topic: what it records is checked, and new topics are new."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from millstream.testing.histories import check
from millstream.testing.histories.clients import Scene
from millstream.testing.histories.faults import BrokerProcess
from millstream.testing.histories.history import Kind
from millstream.testing.histories.recreation import Recreator
from tests.peers.patience import PATIENCE_SECONDS


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with BrokerProcess.millstream(tmp_path) as broker:
        yield Scene({"bootstrap.servers": broker.address}, "t", partitions=2, seed=1, rate=1000)


def test_every_incarnation_is_written_and_read_to_its_end(scene: Scene) -> None:
    admin = AdminClient(scene.config)
    recreator = Recreator(scene, 0)
    ids = []
    for number in (1, 2, 3):
        assert recreator.recreate(admin)
        assert recreator.incarnation == number
        ids.append(recreator.topic_id(admin))
        recreator.write()
        recreator.delete_records(admin, recreator.read())
    assert len(set(ids)) == 3
    report = check(scene.history)
    assert report.is_good, str(report)
    assert report.summary.read == report.summary.acknowledged > 0
    reads = [operation for operation in scene.history if operation.kind is Kind.POLL]
    assert [operation.final for operation in reads] == [True] * 3
    assert [list(operation.moved) for operation in reads] == [
        [f"t-recreated-0-{index}#{number}" for index in (0, 1)] for number in (1, 2, 3)
    ]


@pytest.mark.slow
def test_topic_is_kept_at_the_end(scene: Scene) -> None:
    recreator = Recreator(scene, 0)
    admin = AdminClient(scene.config)
    assert recreator.recreate(admin)
    recreator.stopping.set()
    assert not recreator.recreate(admin)
    assert recreator.topic in admin.list_topics(timeout=PATIENCE_SECONDS).topics
