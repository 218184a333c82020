"""What tests of versions share: stores, and versions that write without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from millstream.pipelines.stores import Store, TableSpec
from millstream.pipelines.versions.catalog import Catalog, open_catalog
from millstream.pipelines.versions.deploying import publish, register
from millstream.pipelines.versions.registry import (
    TableOutput,
    Version,
    Versions,
    catch_up,
    identity_of,
    physical_table,
)
from tests.pipelines.stores.conftest import (  # noqa: F401  fixtures
    Database,
    database,
    postgres,
    postgres_database,
)

Rows = Sequence[tuple[str, Any]]


def version_of(version: str, *, topics: tuple[str, ...] = (), tables: bool = True) -> Version:
    output = TableOutput("revenue", physical_table("revenue", version), ("day",), "upsert")
    return Version(
        version,
        ("orders",),
        (output,) if tables else (),
        topics,
        transactional_id=f"millstream-{identity_of('revenue', version)}",
        group=identity_of("revenue", version),
    )


def revenue_rows(rows: Rows) -> pa.Table:
    return pa.table({"day": [day for day, _ in rows], "total": [total for _, total in rows]})


def offsets_text(offset: int) -> str:
    return json.dumps({"orders": {"0": offset}})


@dataclass
class Scene:
    """A store with the versions of the pipeline `revenue`."""

    database: Database
    catalog: Catalog
    store: Store

    def deploy(self, version: str, **options: Any) -> Versions:
        return register(self.catalog, "revenue", version_of(version, **options))

    def write(
        self, version: str, batch_id: int, end: int, rows: Rows, table: str | None = None
    ) -> None:
        """A batch of a version, which ends at an offset."""
        name = table or physical_table("revenue", version)
        spec = TableSpec(name, ("day",), "upsert")
        query = identity_of("revenue", version)
        self.store.write_arrow([(revenue_rows(rows), spec)], batch_id, query, offsets_text(end))
        self.catalog.run(lambda work: publish(work, "revenue", version), "publish")

    def caught_up(self, version: str) -> None:
        def note(work: Any) -> None:
            work.save(catch_up(work.load("revenue"), version))

        self.catalog.run(note, "catch up")

    def read(self, statement: str = "SELECT day, total FROM revenue ORDER BY day") -> Any:
        return self.database.rows(statement)

    def document(self) -> Versions:
        found = self.catalog.find("revenue")
        assert found is not None
        return found


@pytest.fixture
def scene(database: Database) -> Iterator[Scene]:  # noqa: F811
    with open_catalog(database.url) as catalog, database.open() as store:
        yield Scene(database, catalog, store)
