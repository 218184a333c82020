"""Staging tables: named by run, whole or absent, filled again where a crash emptied them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa
import pytest

from millstream.connect.tables.rows import make_ready
from millstream.connect.tables.schema import layout_of
from millstream.errors import StoreError
from millstream.pipelines.stores import TableSpec
from millstream.pipelines.stores.postgres import PostgresStore
from millstream.pipelines.stores.staging import epoch_of, fill_stage, stage_prefix
from tests.peers.cache import PeerMissing
from tests.peers.postgres import PostgresServer, start_postgres
from tests.pipelines.stores.conftest import Database

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE = TableSpec("numbers", ("id",))
MANY = 50_000
STAGES = "SELECT relname FROM pg_class WHERE relname LIKE 'millstream_stage%'"


def test_name_has_the_epoch_and_a_hash_of_the_query() -> None:
    query = "my_query'; DROP TABLE x; --"
    prefix = stage_prefix(query)
    assert prefix.replace("_", "").isalnum()
    assert epoch_of(f"{prefix}12_abcdef_77", query) == 12
    assert len(f"{prefix}{10**9}_abcdef_{10**14}") <= 63  # else the server would cut it


def test_stage_is_filled_again_if_a_commit_was_not_answered(postgres_database: Database) -> None:
    table = pa.table({"id": list(range(100))})
    layout = layout_of(table.schema, TABLE)
    for _ in range(2):
        fill_stage(postgres_database.url, "stage", make_ready(table, layout), layout)
    assert postgres_database.rows("SELECT count(*) FROM stage") == [(100,)]


def test_stage_that_cannot_be_filled_is_not_there(postgres_database: Database) -> None:
    table = pa.table({"id": ["good", "b\0d"]})
    layout = layout_of(table.schema, TABLE)
    with pytest.raises(StoreError, match=r"stage rows for table 'numbers'.*NUL"):
        fill_stage(postgres_database.url, "stage", make_ready(table, layout), layout)
    assert postgres_database.rows("SELECT to_regclass('stage')") == [(None,)]


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    try:
        server = start_postgres()
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield server
    server.remove()


class CrashBeforeMerge(PostgresStore):
    """The server crashes once, when all rows are staged."""

    server: PostgresServer
    crashes = 0

    def _merge(self, *arguments: Any) -> bool:
        if self.crashes == 0:
            self.crashes += 1
            self.server.crash()
            self.server.start()
        return super()._merge(*arguments)


def test_rows_are_staged_again_after_a_crash(
    spark: SparkSession, own_server: PostgresServer
) -> None:
    frame = spark.range(0, MANY, 1, 2).selectExpr("id", "id * 2 AS twice")
    with CrashBeforeMerge(own_server.url) as store:
        store.server = own_server
        assert store.write(frame, 0, "q", TABLE)
        assert store.crashes == 1
    database = Database(own_server.url)
    assert database.rows("SELECT count(*), sum(twice) FROM numbers") == [(MANY, MANY * (MANY - 1))]
    assert database.rows(STAGES) == []


def test_task_that_hangs_in_its_copy_does_not_hold_up_the_next_batch(
    spark: SparkSession, postgres_database: Database
) -> None:
    """A stage that is locked stays for the next round of cleaning."""
    frame = spark.range(0, MANY, 1, 2).toDF("id")
    with postgres_database.open() as store:
        epoch = store.claim("q")
        name = f"{stage_prefix('q')}{epoch}_late_0_0_0"
        with psycopg.connect(postgres_database.url) as task:
            task.execute(f"CREATE TABLE {name} ()")
            task.commit()
            task.execute(f"LOCK TABLE {name}")
            store.write(frame, 0, "q", TABLE)
            assert postgres_database.rows(STAGES) == [(name,)]
        store.write(frame, 1, "q", TABLE)
    assert postgres_database.rows(STAGES) == []
