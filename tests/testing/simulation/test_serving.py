"""A simulated leader answers fetches: epochs, and what followers have."""

from __future__ import annotations

from millstream.coordination.replication.follower import FetchPosition
from millstream.errors import ErrorCode
from millstream.testing.simulation import stories
from millstream.testing.simulation.cluster import Cluster
from millstream.testing.simulation.serving import check_epoch
from millstream.testing.simulation.surroundings import Answers


def test_epoch_of_a_fetch_must_be_the_leaders() -> None:
    assert check_epoch(3, 3) is None
    assert check_epoch(3, 2) is ErrorCode.FENCED_LEADER_EPOCH
    assert check_epoch(3, 4) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_fetch_without_records_is_held_and_others_are_answered_at_once() -> None:
    cluster, answers = Cluster(2), list[Answers]()
    stories.start(cluster, ["t"])
    cluster.world.run_until(cluster.world.now_ms + 500)
    [key, *_] = cluster.partitions()
    partition = cluster.partitions()[key]
    serving = cluster.processes[partition.leader].serving
    follower = partition.replicas[1]
    epoch = cluster.zookeeper.image.brokers[follower].epoch
    serving.fetch(follower, epoch, {key: FetchPosition(0, 9, -1, 0)}, answers.append)
    assert answers[0][key].error == ErrorCode.UNKNOWN_LEADER_EPOCH
    serving.fetch(follower, epoch, {key: FetchPosition(0, 0, -1, 0)}, answers.append)
    assert len(answers) == 1
    cluster.world.run_until(cluster.world.now_ms + 100)
    assert answers[1][key].error == 0
