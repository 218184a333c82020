"""Reassignments and elections, as far as one broker can; `tests/cli/test_reassign.py` moves
replicas between brokers."""

from __future__ import annotations

import pytest

from millstream.admin.reassignments import elect_leaders, reassign, reassignments
from millstream.admin.topics import create_topic
from millstream.client.cluster import Cluster


def test_nothing_moves_and_no_election_is_needed(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name, partitions=2)
    assert reassignments(cluster) == []
    outcome = elect_leaders(cluster, {name: [0, 1]})
    assert (outcome.partitions, outcome.problems) == ([], {})


def test_refused_partitions_are_named(cluster: Cluster, name: str) -> None:
    create_topic(cluster, name)
    refused = reassign(cluster, {(name, 0): [4711]})
    assert list(refused) == [(name, 0)]
    assert refused[name, 0]
    problems = elect_leaders(cluster, {f"{name}-no": [0]}).problems
    assert list(problems) == [(f"{name}-no", 0)]


@pytest.mark.parametrize("count", [1, 3])
def test_cancelling_what_does_not_move_is_refused(cluster: Cluster, name: str, count: int) -> None:
    create_topic(cluster, name, partitions=count)
    assert len(reassign(cluster, dict.fromkeys([(name, it) for it in range(count)]))) == count
