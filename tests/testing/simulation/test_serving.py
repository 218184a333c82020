"""A simulated leader answers fetches: epochs, and what followers have."""

from __future__ import annotations

from typing import Any

from millstream.coordination.replication.fetch_session import SessionRequest
from millstream.coordination.replication.follower import FetchPosition
from millstream.errors import ErrorCode
from millstream.testing.simulation import stories
from millstream.testing.simulation.cluster import Cluster
from millstream.testing.simulation.serving import check_epoch
from millstream.testing.simulation.surroundings import FetchResponse


def test_epoch_of_a_fetch_must_be_the_leaders() -> None:
    assert check_epoch(3, 3) is None
    assert check_epoch(3, 2) is ErrorCode.FENCED_LEADER_EPOCH
    assert check_epoch(3, 4) is ErrorCode.UNKNOWN_LEADER_EPOCH


def test_fetch_without_records_is_held_and_others_are_answered_at_once() -> None:
    cluster, answers = Cluster(2), list[FetchResponse]()
    stories.start(cluster, ["t"])
    cluster.world.run_until(cluster.world.now_ms + 500)
    [key, *_] = cluster.partitions()
    partition = cluster.partitions()[key]
    serving = cluster.processes[partition.leader].serving
    follower = partition.replicas[1]
    epoch = cluster.zookeeper.image.brokers[follower].epoch
    request = SessionRequest(0, 0, {key: FetchPosition(0, 9, -1, 0)}, ())
    serving.fetch(follower, epoch, request, answers.append)
    assert answers[0].answers[key].error == ErrorCode.UNKNOWN_LEADER_EPOCH
    request = SessionRequest(0, 0, {key: FetchPosition(0, 0, -1, 0)}, ())
    serving.fetch(follower, epoch, request, answers.append)
    assert len(answers) == 1
    cluster.world.run_until(cluster.world.now_ms + 100)
    assert answers[1].answers[key].error == 0


def test_session_has_what_was_named_before_and_ends_with_a_wrong_epoch() -> None:
    cluster, answers = Cluster(2), list[FetchResponse]()
    stories.start(cluster, ["t"])
    cluster.world.run_until(cluster.world.now_ms + 500)
    [key, *_] = cluster.partitions()
    partition = cluster.partitions()[key]
    serving = cluster.processes[partition.leader].serving
    follower = partition.replicas[1]
    epoch = cluster.zookeeper.image.brokers[follower].epoch

    def fetch(*request: Any) -> FetchResponse:
        serving.fetch(follower, epoch, SessionRequest(*request), answers.append)
        cluster.world.run_until(cluster.world.now_ms + 100)
        return answers[-1]

    first = fetch(0, 0, {key: FetchPosition(0, 0, -1, 0)}, ())
    assert list(first.answers) == [key]
    assert fetch(first.session_id, 1, {}, ()) == FetchResponse(first.session_id)  # nothing is new
    assert fetch(first.session_id, 1, {}, ()).error == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert fetch(99_999_999, 1, {}, ()).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
