"""Membership of a simulated broker: sessions, commits whose answers are lost, new incarnations."""

from __future__ import annotations

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import FeatureLevelRecord, MetadataRecord
from millstream.testing.simulation import stories
from millstream.testing.simulation.cluster import Cluster
from millstream.testing.simulation.network import ZOOKEEPER


def started() -> Cluster:
    cluster = Cluster(1)
    stories.start(cluster, [])
    return cluster


def raise_feature(image: ClusterImage) -> list[MetadataRecord]:
    return [FeatureLevelRecord("f", image.features.get("f", 0) + 1)]


def test_commit_without_an_answer_is_applied_once() -> None:
    cluster, done = started(), list[int]()
    cluster.network.cut(ZOOKEEPER, 1)
    cluster.processes[1].member.commit("raise", raise_feature, lambda: done.append(1))
    cluster.world.run_until(cluster.world.now_ms + 700)
    assert (cluster.zookeeper.image.features.get("f"), done) == (1, [])
    cluster.network.heal()
    cluster.world.run_until(cluster.world.now_ms + 1_000)
    assert (cluster.zookeeper.image.features.get("f"), done) == (1, [1])


def test_broker_without_answers_is_not_live_before_its_session_can_have_ended() -> None:
    cluster = started()
    member = cluster.processes[1].member
    assert member.is_live
    cluster.network.cut(1, ZOOKEEPER)
    while member.is_live:
        cluster.world.step()
    assert 1 in cluster.zookeeper.live()


def test_expired_broker_joins_again_as_another_incarnation() -> None:
    cluster = started()
    before = cluster.zookeeper.image.brokers[1]
    [session] = [it.id for it in cluster.zookeeper.sessions.values() if it.broker_id == 1]
    cluster.zookeeper.expire(session)
    cluster.world.run_until(cluster.world.now_ms + 2_000)
    after = cluster.zookeeper.image.brokers[1]
    assert after.is_active
    assert after.epoch > before.epoch
    assert after.incarnation_id != before.incarnation_id
