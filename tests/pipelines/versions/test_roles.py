"""Where a version writes: to public topics if it is in force, otherwise to private ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.versions import registry
from millstream.pipelines.versions.catalog import Catalog, open_catalog
from millstream.pipelines.versions.deploying import register
from millstream.pipelines.versions.marks import open_cluster, read_marks
from millstream.pipelines.versions.registry import Versions
from millstream.pipelines.versions.roles import Roles
from millstream.pipelines.writing.decisions import DecisionLog
from millstream.pipelines.writing.options import parse_write_options
from tests.pipelines.conftest import Topics
from tests.pipelines.versions.conftest import version_of


def save(catalog: Catalog, document: Versions) -> None:
    catalog.run(lambda work: work.save(document), "save")


def test_role_decides_where_topics_are_written(topics: Topics, tmp_path: Path) -> None:
    settings = Settings(tmp_path, broker=topics.bootstrap)
    public = topics.create(3)
    options = parse_write_options(
        {"kafka.bootstrap.servers": topics.bootstrap, "topic": public}, streaming=False
    )
    roles = {it: Roles(settings.store_url, public, it) for it in ("1", "2")}
    with open_catalog(settings.store_url) as catalog, open_cluster(settings) as cluster:
        DecisionLog(cluster, "millstream-versions-test").create_topic()
        for version in roles:
            register(catalog, public, version_of(version, topics=(public,), tables=False))

        def written() -> list[tuple[str | None, int]]:
            found = [it.targets({"result": options}, cluster) for it in roles.values()]
            return [(it.topics["result"].topic, it.role.number) for it in found]

        assert written() == [(public, 0), (f"{public}.v2", 0)]
        assert len(cluster.topic(f"{public}.v2").partitions) == 3
        document = catalog.find(public)
        assert document is not None
        save(catalog, registry.switch(document, "2", {}))
        assert written() == [(f"{public}.v1", 1), (public, 1)]
        assert read_marks(cluster, public).number == 1
        save(catalog, registry.start_removing(registry.switch(document, "2", {}), "1"))
        with pytest.raises(ConfigError, match=r"version 1 of .* is being removed"):
            written()
