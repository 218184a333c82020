"""Views that are prepared for the tables of all versions, so that a switch waits for no reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from millstream.errors import StoreError
from millstream.pipelines.versions.catalog import Catalog, ReadersHoldLocks, open_catalog
from millstream.pipelines.versions.preparing import prepare_views, shown_tables, tables_under
from millstream.pipelines.versions.registry import Versions, deploy, start_removing
from millstream.pipelines.versions.removing import drop_tables, mark
from tests.pipelines.stores.conftest import Database
from tests.pipelines.versions.conftest import version_of
from tests.pipelines.versions.operating import Operations, tables_of

PIPELINE = "revenue"


def test_only_tables_of_versions_that_are_not_being_removed_can_be_shown() -> None:
    document = deploy(deploy(Versions(PIPELINE), version_of("1")), version_of("2"))
    assert shown_tables(document) == {"revenue": "revenue__v1"}
    assert tables_under(document, "revenue") == ["revenue__v1", "revenue__v2"]
    assert tables_under(start_removing(document, "2"), "revenue") == ["revenue__v1"]
    assert tables_under(document, "other") == []
    assert shown_tables(Versions(PIPELINE)) == {}


@pytest.fixture
def operations(postgres_database: Database, tmp_path: Path) -> Operations:
    made = Operations(postgres_database.url, "", tmp_path)
    made.deployed(PIPELINE)
    return made


@pytest.fixture
def catalog(postgres_database: Database) -> Iterator[Catalog]:
    with open_catalog(postgres_database.url) as opened:
        yield opened


@pytest.fixture
def reader(postgres_database: Database) -> Iterator[psycopg.Connection]:
    """Keeps the locks of what it has read."""
    with psycopg.connect(postgres_database.url) as opened:
        yield opened


def versions_read(reader: psycopg.Connection) -> set[tuple[str]]:
    a, b = tables_of(PIPELINE)
    return set(reader.execute(f"SELECT version FROM {b} UNION SELECT version FROM {a}").fetchall())


def test_switch_and_rollback_wait_for_no_reader_of_prepared_views(
    operations: Operations, catalog: Catalog, reader: psycopg.Connection
) -> None:
    prepare_views(catalog, PIPELINE)
    operation: Callable[[str], None]
    for operation, version in ((operations.switch, "2"), (operations.rollback, "1")) * 2:
        versions_read(reader)
        operation(PIPELINE)
        assert versions_read(reader) == {(version,)}


def test_views_are_prepared_one_by_one(
    operations: Operations, catalog: Catalog, reader: psycopg.Connection
) -> None:
    a, b = tables_of(PIPELINE)
    reader.execute(f"SELECT * FROM {b}")
    with pytest.raises(ReadersHoldLocks, match="changed nothing"):
        prepare_views(catalog, PIPELINE, wait_ms=0)
    assert catalog.run(lambda work: work.show(a, f"{a}__v1"), "show")
    assert not catalog.run(lambda work: work.show(b, f"{b}__v2"), "show")
    reader.rollback()
    prepare_views(catalog, PIPELINE, wait_ms=0)
    assert catalog.run(lambda work: work.show(b, f"{b}__v1"), "show")


def test_version_that_is_being_removed_leaves_the_views(
    operations: Operations, catalog: Catalog
) -> None:
    operations.switch(PIPELINE)
    document = catalog.run(lambda work: mark(work, PIPELINE, "1"), "mark")
    version = document.get("1")
    with pytest.raises(StoreError, match="depend"):
        catalog.run(lambda work: drop_tables(work, document, version), "drop")
    prepare_views(catalog, PIPELINE)
    catalog.run(lambda work: drop_tables(work, document, version), "drop")


def test_pipeline_that_was_never_deployed_has_nothing_to_prepare(catalog: Catalog) -> None:
    prepare_views(catalog, PIPELINE)
    assert not catalog.exists()
