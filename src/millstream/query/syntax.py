"""What a statement of SQL names, as DuckDB's parser reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import duckdb

from millstream.query.fetching import QueryFailed

_STATEMENTS = ("SELECT", "EXPLAIN")
_IDENTIFIER = re.compile(rb'"(?P<quoted>(?:[^"]|"")*)"|(?P<plain>[\w\x80-\xff]+)')


def identifiers(sql: str) -> frozenset[str]:
    """All names in a statement, or a part of one, in lower case: not what strings and comments
    contain."""
    text = sql.encode()  # positions of tokens count bytes
    found = set()
    for position, kind in duckdb.tokenize(sql):
        match = _IDENTIFIER.match(text, position) if kind is duckdb.token_type.identifier else None
        if match is not None:
            name = match["plain"] or match["quoted"].replace(b'""', b'"')
            found.add(name.decode().lower())
    return frozenset(found)


def table_names(connection: duckdb.DuckDBPyConnection, sql: str) -> set[str]:
    """The names of tables in a statement, with the schema before a dot if there is one. Raises
    `QueryFailed` for a statement that is wrong, or more than one."""
    try:
        statements = connection.extract_statements(sql)
    except duckdb.Error as error:
        raise QueryFailed(str(error).strip()) from error
    if len(statements) != 1:
        raise QueryFailed(f"write one statement, not {len(statements)}")
    kind = statements[0].type.name
    if kind not in _STATEMENTS:
        raise QueryFailed(f"write a SELECT, not a {kind}")
    ((text,),) = connection.execute("select json_serialize_sql(?)", [sql]).fetchall()
    tree = json.loads(text)
    if not tree["error"]:
        return set(_names_in(tree))
    with duckdb.connect() as scratch:  # EXPLAIN, DESCRIBE and others, which have no tree
        try:
            return set(scratch.get_table_names(sql))
        except duckdb.Error as error:
            raise QueryFailed(str(error).strip()) from error


def _names_in(tree: Any) -> Iterator[str]:
    """The names of all tables in a syntax tree."""
    if isinstance(tree, list):
        for it in tree:
            yield from _names_in(it)
    elif isinstance(tree, dict):
        if tree.get("type") == "BASE_TABLE":
            parts = (tree.get("catalog_name"), tree.get("schema_name"), tree.get("table_name"))
            yield ".".join(it for it in parts if it)
        for it in tree.values():
            yield from _names_in(it)
