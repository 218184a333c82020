"""A DuckDB that reads only what is registered with it: no files, no network, no extensions, no
Python variables, and a configuration that SQL cannot change."""

from __future__ import annotations

from collections.abc import Mapping

import duckdb

# Applied in this order; after the last one nothing can be changed.
_LOCKS = (
    "set python_enable_replacements = false",
    "set autoinstall_known_extensions = false",
    "set autoload_known_extensions = false",
    "set enable_external_access = false",
    "set lock_configuration = true",
)


def open_sandbox(
    tables: Mapping[str, object], *, memory_limit_mb: int, threads: int
) -> duckdb.DuckDBPyConnection:
    """A connection to a database in memory that has these Arrow datasets as tables."""
    connection = duckdb.connect(
        config={"memory_limit": f"{memory_limit_mb}MB", "threads": str(threads)}
    )
    connection.execute("set TimeZone = 'UTC'")
    connection.execute("set temp_directory = ''")
    for name, table in tables.items():
        connection.register(name, table)
    for lock in _LOCKS:
        connection.execute(lock)
    return connection
