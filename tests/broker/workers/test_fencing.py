"""Workers that died, in the metadata."""

from __future__ import annotations

from millstream.broker.workers.fencing import fence
from tests.broker.workers.images import image_of


def test_dead_worker_is_fenced_and_its_partitions_have_no_leader() -> None:
    image = image_of({"t": [1, 2, 2], "u": [2]}, workers=2)
    after = image.apply(fence(image, [2]), image.version + 1)
    assert [partition.leader for partition in after.topics["t"].partitions] == [1, -1, -1]
    assert after.topics["u"].partitions[0].leader == -1
    assert after.topics["u"].partitions[0].isr == (2,)
    assert after.topics["u"].partitions[0].leader_epoch == 1
    assert [after.brokers[worker].fenced for worker in (1, 2)] == [False, True]


def test_worker_that_has_stopped_cleanly_keeps_its_partitions() -> None:
    image = image_of({"t": [1, 2]}, workers=2)
    fenced = image.apply(fence(image, [2]), image.version + 1)
    assert fence(fenced, [2]) == []
    assert fence(image, [3]) == []
