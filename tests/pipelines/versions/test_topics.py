"""Topics of versions, on a real broker: ends, deletion, and last batches."""

from __future__ import annotations

from pathlib import Path

from millstream.pipelines.running.settings import Settings
from millstream.pipelines.versions.catalog import open_catalog
from millstream.pipelines.versions.marks import open_cluster, read_marks
from millstream.pipelines.versions.topics import (
    complete_last_batch,
    delete_group,
    delete_topics,
    forget_decisions,
    topic_ends,
)
from tests.pipelines.conftest import Topics
from tests.pipelines.versions.conftest import version_of


def test_ends_are_those_of_all_partitions(topics: Topics, tmp_path: Path) -> None:
    name = topics.create(2)
    topics.fill(name, [b"1", b"2", b"3"])
    with open_cluster(Settings(tmp_path, broker=topics.bootstrap)) as cluster:
        ends = topic_ends(cluster, [name])
        assert len(ends) == 2
        assert sum(ends.values()) == 3
        delete_topics(cluster, [name, f"{name}-missing"])
        delete_topics(cluster, [])
        assert name not in cluster.refresh([name])
        delete_group(cluster, f"{name}-missing")


def test_version_that_decided_nothing_has_nothing_to_complete(
    topics: Topics, tmp_path: Path
) -> None:
    settings = Settings(tmp_path, broker=topics.bootstrap)
    version = version_of("7", topics=("alerts",))
    with open_cluster(settings) as cluster, open_catalog(settings.store_url) as catalog:
        complete_last_batch(catalog, cluster, "revenue@7", version)
        forget_decisions(cluster, version)
        assert "revenue@7" not in read_marks(cluster, "revenue").writers
