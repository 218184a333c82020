"""Questions to a transaction coordinator on another broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.peers.connection import PeerError
from millstream.broker.peers.verification import RemoteTransactions
from millstream.coordination.cluster import TRANSACTIONS_TOPIC
from millstream.errors import ErrorCode
from tests.broker.peers.cluster import Cluster, run
from tests.broker.peers.test_markers import ID, Writer


def test_coordinator_answers_for_each_partition(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(TRANSACTIONS_TOPIC, 1, cleanup_policy="compact")
        await cluster.create("t", 2, 2)
        writer = Writer(cluster, 1, protocol=1)
        await writer.begin()
        producer = (writer.producer["producer_id"], writer.producer["producer_epoch"])
        remote = RemoteTransactions(cluster.brokers[2].peers)
        both = [("t", 0), ("t", 1)]

        async def refused(*partitions: tuple[str, int], adds: bool = False) -> dict[object, object]:
            errors = await remote.ask(1, ID, *producer, partitions, adds=adds)
            return {partition: error.code for partition, error in errors.items()}

        assert await refused(*both) == dict.fromkeys(both, ErrorCode.TRANSACTION_ABORTABLE)
        assert await refused(("t", 0), adds=True) == {}
        assert await refused(*both) == {("t", 1): ErrorCode.TRANSACTION_ABORTABLE}
        # Not in its metadata yet: the producer tries again.
        assert await refused(("t", 0), ("u", 0)) == {
            ("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE,
            ("u", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE,
        }
        wrong = await remote.ask(2, ID, *producer, both, adds=False)
        assert {error.code for error in wrong.values()} == {ErrorCode.NOT_COORDINATOR}
        with pytest.raises(PeerError):
            await remote.ask(3, ID, *producer, both, adds=False)

    run(tmp_path, scenario)
