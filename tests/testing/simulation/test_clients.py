"""Simulated producers notice records that are missing."""

from __future__ import annotations

import pytest

from millstream.testing.simulation import Violation, stories
from millstream.testing.simulation.clients import ACKS_ALL, Producer
from millstream.testing.simulation.cluster import Cluster


def test_producer_compares_what_it_was_promised_with_the_log() -> None:
    cluster = Cluster(3)
    stories.start(cluster, ["t"])
    producer = Producer(cluster, 1, "t", 0, ACKS_ALL)
    cluster.world.run_until(cluster.world.now_ms + 2_000)
    cluster.prefers_leaders = True
    stories.heal(cluster, [producer], ["t"])
    producer.check()
    [sequences] = producer.acknowledged.values()
    assert sequences == list(range(len(sequences)))
    sequences.append(sequences[-1] + 1)
    with pytest.raises(Violation, match="producer 1 was acknowledged"):
        producer.check()
