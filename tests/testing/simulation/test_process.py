"""A simulated broker process: produce, roles, controlled shutdown."""

from __future__ import annotations

from millstream.errors import ErrorCode
from millstream.records.record import Record, encode_batch
from millstream.testing.simulation import stories
from millstream.testing.simulation.cluster import Cluster
from millstream.testing.simulation.surroundings import ErrorOrNone

BATCH = encode_batch([Record(0, 1_000, None, b"value", ())])


def started() -> Cluster:
    cluster = Cluster(2)
    stories.start(cluster, ["t"])
    cluster.world.run_until(cluster.world.now_ms + 500)
    return cluster


def test_leader_answers_when_all_in_sync_replicas_have_flushed() -> None:
    cluster, answers = started(), list[ErrorOrNone]()
    [key, *_] = cluster.partitions()
    partition = cluster.partitions()[key]
    leader = cluster.processes[partition.leader]
    leader.produce(key, BATCH, acks=-1, reply=answers.append)
    assert answers == []
    cluster.world.run_until(cluster.world.now_ms + 300)
    assert answers == [None]
    ends = {cluster.processes[it].replicas[key].log.flushed_offset for it in partition.replicas}
    assert ends == {1}


def test_follower_refuses_to_append() -> None:
    cluster, answers = started(), list[ErrorOrNone]()
    [key, *_] = cluster.partitions()
    follower = cluster.partitions()[key].replicas[1]
    cluster.processes[follower].produce(key, BATCH, acks=-1, reply=answers.append)
    assert answers == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_shutdown_moves_leaders_before_the_process_stops() -> None:
    cluster = started()
    cluster.restarts = False
    process = cluster.processes[1]
    process.shut_down()
    cluster.world.run_until(cluster.world.now_ms + 500)
    assert 1 not in cluster.processes
    assert all(it.leader not in (1, -1) for it in cluster.partitions().values())
