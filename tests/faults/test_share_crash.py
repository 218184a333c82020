"""kill -9 while members of a share group work: nothing is lost, and nothing accepted comes back."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import Server, free_port, start_millstream
from tests.peers.share_member import (
    ACCEPT,
    RELEASE,
    Acknowledgement,
    Acquired,
    ShareMember,
    initialize,
)
from tests.peers.wire import ConnectionEnded, Wire, batch, produce_fields

RECORDS = 3_000
DELIVERY_LIMIT = 10
SETTINGS = {
    "group.share.delivery.count.limit": str(DELIVERY_LIMIT),
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.snapshot.update.records.per.snapshot": "20",
}


class Group:
    """Members that accept most records and release some, and what they were told."""

    def __init__(self, server: Server, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.accepted: set[int] = set()  # and answered without error
        self.in_doubt: set[int] = set()  # accepted, but nobody knows whether that came through
        self.released: dict[int, int] = {}  # the delivery count of the release that was answered
        with Wire(server.bootstrap) as wire:
            self.topic_id = wire.call("metadata", 12, topics=({"name": "t"},)).topics[0].topic_id

    @property
    def missing(self) -> set[int]:
        """What nobody has accepted, for sure or in doubt."""
        return set(range(RECORDS)) - self.accepted - self.in_doubt

    def work(self, rounds: int) -> None:
        """Fetch and acknowledge so often, or until nothing is left."""
        with ShareMember(self.server.bootstrap, "g", self.topic_id) as member:
            for _ in range(rounds):
                max_wait = 60_000 if self.missing else 2_000  # the disk may be busy with others
                acquired = member.fetch(max_wait=max_wait, max_records=40, batch_size=20)
                self.check(acquired)
                acks = self.decide(acquired)
                if not acks:
                    return
                assert member.acknowledge(*acks) == 0
                self.note(acquired, acks)

    def check(self, acquired: Acquired) -> None:
        for first, last, count in acquired:
            for offset in range(first, last + 1):
                assert offset not in self.accepted, f"{offset} was accepted, and came again"
                assert count > self.released.get(offset, 0), f"{offset} forgot a delivery"

    def decide(self, acquired: Acquired) -> list[Acknowledgement]:
        acks: list[Acknowledgement] = []
        for first, last, count in acquired:
            releases = 0.1 if count < DELIVERY_LIMIT - 2 else 0
            kinds = [
                RELEASE if self.random.random() < releases else ACCEPT
                for _ in range(first, last + 1)
            ]
            acks.append((first, last, kinds))
        return acks

    def note(self, acquired: Acquired, acks: list[Acknowledgement]) -> None:
        for (first, last, count), (_, _, kinds) in zip(acquired, acks, strict=True):
            assert not isinstance(kinds, int)
            for offset, kind in zip(range(first, last + 1), kinds, strict=True):
                if kind == ACCEPT:
                    self.accepted.add(offset)
                else:
                    self.released[offset] = count


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_accepted_records_never_return_and_none_is_lost(tmp_path: Path, seed: int) -> None:
    port = free_port()
    server = start_millstream(tmp_path / "data", SETTINGS, port=port)
    try:
        prepare(server)
        group = Group(server, seed)
        for _ in range(6):
            group.work(group.random.randrange(2, 12))
            killed_while_asked(group)
            server = group.server = start_millstream(tmp_path / "data", SETTINGS, port=port)
        group.work(10_000)
        assert not group.missing, f"lost: {sorted(group.missing)[:10]}"
    finally:
        server.kill()


def prepare(server: Server) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_SECONDS)
    with Wire(server.bootstrap) as wire:
        for _ in range(RECORDS // 20):
            wire.call("produce", 9, **produce_fields("t", batch([b"x"] * 20)))
        topic_id = wire.call("metadata", 12, topics=({"name": "t"},)).topics[0].topic_id
    initialize(server.bootstrap, "g", topic_id)


def killed_while_asked(group: Group) -> None:
    """An acknowledgement is under way when the server dies: it may have come through, or not."""
    with ShareMember(group.server.bootstrap, "g", group.topic_id) as member:
        acquired = member.fetch(max_wait=2_000, max_records=40)
        group.check(acquired)
        acks = group.decide(acquired)
        sent = member.send_acknowledgements(*acks)
        group.server.process.kill()
        try:
            answered = sent()
        except (ConnectionEnded, OSError):
            answered = None
        group.server.process.wait()
        if answered == 0:
            group.note(acquired, acks)
        else:
            for first, last, kinds in acks:
                assert not isinstance(kinds, int)
                pairs = zip(range(first, last + 1), kinds, strict=True)
                group.in_doubt.update(offset for offset, kind in pairs if kind == ACCEPT)
