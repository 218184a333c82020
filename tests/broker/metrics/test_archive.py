"""How far the archive is behind, and whether it fails."""

from __future__ import annotations

from pathlib import Path

from millstream.broker.archiving.reporting import ArchivedPartition
from millstream.broker.embedded import Broker
from millstream.broker.metrics.archive import gauges
from millstream.metrics.exposition import render
from tests.broker.archiving.scenes import archived_end, create, produce, settings
from tests.broker.metrics.scraping import Metrics, scrape
from tests.peers.patience import wait_until


def test_archived_partitions_are_shown() -> None:
    found = [
        ArchivedPartition("orders", 0, 100, 0, None),
        ArchivedPartition("orders", 1, 50, 4711, "the bucket is gone"),
    ]
    metrics = Metrics("".join(render(gauges(found))))
    at = {"topic": "orders", "partition": 1}
    assert metrics.value("millstream_archive_end_offset", **at) == 50
    assert metrics.value("millstream_archive_lag_bytes", **at) == 4711
    assert metrics.value("millstream_archive_failing", **at) == 1
    assert metrics.value("millstream_archive_failing", topic="orders", partition=0) == 0


def test_broker_shows_its_archive(tmp_path: Path) -> None:
    config = settings(str(tmp_path / "archive"), **{"millstream.metrics.listener": "127.0.0.1:0"})
    with Broker.start(tmp_path / "data", config) as broker:
        address = f"{broker.metrics_url}"
        assert not scrape(address).all("millstream_archive_lag_bytes")
        create(broker)
        produce(broker, 0, 150)
        wait_until(lambda: archived_end(tmp_path / "archive") > 100)
        at = {"topic": "orders", "partition": 0}
        wait_until(lambda: scrape(address).value("millstream_archive_lag_bytes", **at) == 0)
        end = scrape(address).value("millstream_archive_end_offset", **at)
        assert end == archived_end(tmp_path / "archive")
