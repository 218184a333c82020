"""The invariants notice what they are for."""

from __future__ import annotations

import uuid

import pytest

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import (
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    TopicRecord,
)
from millstream.records._walk import stamp_batch
from millstream.records.record import Record, encode_batch
from millstream.testing.simulation.invariants import Invariants, Key
from millstream.testing.simulation.world import Violation, World

TOPIC_ID = uuid.UUID(int=1)
KEY: Key = (TOPIC_ID, 0)
ONE, TWO = uuid.UUID(int=11), uuid.UUID(int=12)


def batch(offset: int, epoch: int = 0, value: bytes = b"v") -> bytes:
    return bytes(stamp_batch(encode_batch([Record(0, 1, None, value, ())]), offset, epoch))


class Checked:
    """Hosts 1 and 2 have a partition, led by 1."""

    def __init__(self) -> None:
        self.it = Invariants(World(1))
        self.image = ClusterImage()
        self.commit(TopicRecord("t", TOPIC_ID), PartitionRecord(0, TOPIC_ID, (1, 2), (1, 2), 1))
        self.it.leads(1, ONE, KEY, 0)
        for host in (1, 2):
            self.it.appended(host, KEY, batch(0))
            self.it.flushed(host, KEY, 1)
        self.it.high_watermark(1, KEY, 0, 1)

    def commit(self, *records: MetadataRecord) -> None:
        before = self.image
        self.image = before.apply(records, before.version + 1)
        self.it.metadata_changed(before, self.image)


def test_orderly_history_is_accepted() -> None:
    checked = Checked()
    checked.it.acknowledged(KEY, 1)
    checked.it.follower_high_watermark(2, KEY, 1)
    checked.commit(PartitionChangeRecord(0, TOPIC_ID, leader=2))
    checked.it.leads(2, TWO, KEY, 1)
    assert checked.it.ack_count == 1


def test_leader_without_what_is_committed_is_noticed() -> None:
    checked = Checked()
    checked.it.deleted(2, KEY, ClusterImage())
    with pytest.raises(Violation, match="in-sync replica 2"):
        checked.commit(PartitionChangeRecord(0, TOPIC_ID, leader=2))
    with pytest.raises(Violation, match="does not have what is committed"):
        checked.it.leads(2, TWO, KEY, 1)


def test_other_batch_at_the_same_offset_and_epoch_is_noticed() -> None:
    checked = Checked()
    checked.it.appended(1, KEY, batch(1))
    with pytest.raises(Violation, match="another batch at offset 1"):
        checked.it.appended(2, KEY, batch(1, value=b"w"))


def test_second_leader_of_an_epoch_is_noticed() -> None:
    with pytest.raises(Violation, match="leads partition 0 in epoch 0 of another"):
        Checked().it.leads(2, TWO, KEY, 0)


def test_high_watermark_above_what_is_durable_is_noticed() -> None:
    checked = Checked()
    for host in (1, 2):
        checked.it.appended(host, KEY, batch(1))
    checked.it.flushed(1, KEY, 2)
    with pytest.raises(Violation, match="in-sync replica 2 of partition 0 has 1, but 2"):
        checked.it.high_watermark(1, KEY, 0, 2)


def test_acknowledgement_above_the_high_watermark_is_noticed() -> None:
    with pytest.raises(Violation, match="acknowledged and not committed"):
        Checked().it.acknowledged(KEY, 2)


def test_cut_of_what_is_committed_is_noticed() -> None:
    with pytest.raises(Violation, match="after host 2 was cut at 0"):
        Checked().it.truncated(2, KEY, 0, is_below_high_watermark=False)


def test_loss_of_durable_records_is_noticed() -> None:
    checked = Checked()
    checked.it.recovered(1, KEY, batch(0))
    with pytest.raises(Violation, match="lost durable records"):
        checked.it.recovered(2, KEY, b"")


def test_deletion_of_a_replica_is_noticed() -> None:
    checked = Checked()
    with pytest.raises(Violation, match="deleted its replica"):
        checked.it.deleted(2, KEY, checked.image)


def test_commit_of_a_former_controller_is_noticed() -> None:
    with pytest.raises(Violation, match="epoch 1 committed; 2 is elected"):
        Checked().it.controller_committed(1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (PartitionChangeRecord(0, TOPIC_ID, isr=()), "the in-sync set"),
        (PartitionChangeRecord(0, TOPIC_ID, isr=(1, 3)), "the in-sync set"),
        (PartitionChangeRecord(0, TOPIC_ID, isr=(2,)), "the leader of partition 0 is not in sync"),
    ],
)
def test_wrong_metadata_are_noticed(change: PartitionChangeRecord, message: str) -> None:
    with pytest.raises(Violation, match=message):
        Checked().commit(change)
