"""kill -9 around the deletion and recreation of a topic that a share group consumes."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, free_port, start_millstream
from tests.peers.share_member import ACCEPT, RELEASE, ShareMember, initialize
from tests.peers.wire import Wire, batch, produce_fields

SETTINGS = {"share.coordinator.state.topic.num.partitions": "2"}


class Life:
    """A broker that is killed and started again on the same data, and its one topic."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self.server = self._start()

    def _start(self) -> Server:
        return start_millstream(self._directory, SETTINGS, port=self._port)

    def kill(self) -> None:
        self.server.kill()
        self.server = self._start()

    def create(self) -> uuid.UUID:
        admin = self._admin()  # its futures fail when it is collected
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_SECONDS)
        with Wire(self.server.bootstrap) as wire:
            answer = wire.call("metadata", 12, topics=({"name": "t"},))
        topic_id: uuid.UUID = answer.topics[0].topic_id
        initialize(self.server.bootstrap, "g", topic_id)
        return topic_id

    def delete(self) -> None:
        admin = self._admin()
        admin.delete_topics(["t"])["t"].result(PATIENCE_SECONDS)

    def produce(self, count: int) -> None:
        with Wire(self.server.bootstrap) as wire:
            answer = wire.call("produce", 9, **produce_fields("t", batch([b"x"] * count)))
        assert answer.responses[0].partition_responses[0].error_code == 0

    def _admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.server.bootstrap, "log_level": 0})


@pytest.mark.parametrize("killed_after", ["deleted", "created", "produced"])
def test_recreated_topic_is_delivered_from_its_first_record(
    tmp_path: Path, killed_after: str
) -> None:
    """The group was past these offsets in the old topic, and held some of its records."""
    life = Life(tmp_path / "data")
    try:
        old_id = life.create()
        life.produce(10)
        with ShareMember(life.server.bootstrap, "g", old_id) as member:
            assert member.fetch(max_wait=60_000) == [(0, 9, 1)]
            assert member.acknowledge((0, 5, ACCEPT), (6, 7, RELEASE)) == 0
            life.delete()
            if killed_after == "deleted":
                life.kill()
            new_id = life.create()
            if killed_after == "created":
                life.kill()
            life.produce(4)
            if killed_after == "produced":
                life.kill()
        assert new_id != old_id
        with ShareMember(life.server.bootstrap, "g", new_id) as member:
            assert member.fetch(max_wait=60_000) == [(0, 3, 1)]
            assert member.acknowledge((0, 3, ACCEPT)) == 0
            life.produce(2)
            assert member.fetch(max_wait=60_000) == [(4, 5, 1)]
    finally:
        life.server.kill()
