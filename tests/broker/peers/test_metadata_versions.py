"""How far other brokers have read the metadata."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.peers.metadata_versions import metadata_versions
from tests.broker.replication.cluster import Cluster, run


def test_brokers_that_answer_report_their_versions(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            peers = cluster.brokers[1].peers
            assert await metadata_versions(peers, [2]) == {2: cluster.image.version}
            behind = cluster.image.version
            cluster.homes[2].is_live = False  # reads no further, but answers
            await cluster.create_topic("t", 1)
            assert cluster.image.version > behind
            assert await metadata_versions(peers, [2, 9]) == {2: behind}

    run(main)
