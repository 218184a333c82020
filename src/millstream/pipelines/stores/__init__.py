"""Stores: tables that pipelines keep up to date, exactly once, in SQLite, PostgreSQL and others.

store = open_store("sqlite:///shop.db")
table = TableSpec("revenue", key=("minute",))
query = frame.writeStream.foreachBatch(
    lambda batch, batch_id: store.write(batch, batch_id, "revenue", table)
)
"""

from __future__ import annotations

from pathlib import Path

from millstream.connect.tables.spec import POSTGRES, SQLITE, Mode, TableSpec
from millstream.errors import ConfigError
from millstream.pipelines.stores.spec import Progress
from millstream.pipelines.stores.store import Store

__all__ = ["Mode", "Progress", "Store", "TableSpec", "open_store"]

SCHEMES = (
    "duckdb", "fts5", "delta", "redis", "rediss", "opensearch", "opensearchs", "elasticsearch",
    "elasticsearchs",
)  # fmt: skip


def open_store(url: str) -> Store:
    """`sqlite:///shop.db` (relative), `sqlite:////var/lib/shop.db`, `postgresql://...`, or a target
    of `millstream connect`: `duckdb:///...`, `fts5:///...`, `delta:///...`, `redis://...`,
    `opensearch://...`."""
    if url.startswith(SQLITE) and len(url) > len(SQLITE):
        from millstream.pipelines.stores.sqlite import SqliteStore

        return SqliteStore(Path(url.removeprefix(SQLITE)))
    if url.startswith(POSTGRES):
        from millstream.pipelines.stores.postgres import PostgresStore

        return PostgresStore(url)
    if url.partition("://")[0] in SCHEMES:
        from millstream.pipelines.stores.sink_store import SinkStore

        return SinkStore(url)
    raise ConfigError(
        f"store {url!r}: give sqlite:///relative/path.db, sqlite:////absolute/path.db, "
        "postgresql://user@host:port/database, or an address that starts with "
        + ", ".join(f"{it}://" for it in SCHEMES)
    )
