"""Which rows of a sink a predicate of `--where` selects, by what the rows themselves have.

The predicate is about records. A row has their decoded fields, so it can be asked the same where
the predicate uses nothing else: columns of the value, or fields read from it by a constant path
(`_value->>'$.email'`). A row of a change in Debezium's form is the `after` of its record. What a
row does not have makes the question undecidable: the key, offset and time of the record, its
headers, the text of the value as a whole, a field that the sink left out, and numbers or times that
the sink has in another form than the text of the record.

Receipts keep the reasons for that, and so these have no text of the predicate but plain names of
fields, and no value of a row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa

from millstream.connect.sinks.changes import Format, Row
from millstream.connect.sinks.sink import Target
from millstream.excision.documents import Undecidable
from millstream.query.columns import RECORD_COLUMNS
from millstream.query.inferring import infer_columns
from millstream.query.sandbox import open_sandbox

TABLE = "records"
NUMBER = "__number"
MEMORY_LIMIT_MB = 512
_FIELD = re.compile(
    r"(?:json_extract(?:_string|_path|_path_text)?\s*\(\s*_value\s*,|\b_value\s*->>?)\s*'([^']*)'",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?:\$\.)?([A-Za-z0-9_-]+)((?:\.[A-Za-z0-9_-]+|\[\d+\])*)")
_MISSING = re.compile(r'Referenced column "([^"]+)" not found')
_UNFIT = (pa.ArrowException, ValueError, TypeError, ArithmeticError)
_EXACT = (pa.types.is_string, pa.types.is_integer, pa.types.is_boolean)


class Predicate:
    """Selects rows of a target."""

    def __init__(self, where: str, target: Target, format: Format) -> None:
        """Raises `Undecidable`."""
        self._where, self._target = where, target
        self._is_envelope = format == "debezium"
        _refuse(self._where, self._target, self._is_envelope)

    def select(self, rows: Sequence[tuple[str, Row]]) -> list[tuple[str, Row]]:
        """Those for which it holds. Raises `Undecidable`."""
        if not rows:
            return []
        self._refuse_texts([row for _, row in rows])
        try:
            table = self._table([row for _, row in rows])
        except _UNFIT:
            raise Undecidable("rows have values that their columns cannot hold") from None
        while True:
            try:
                return [rows[number] for number in self._evaluate(table)]
            except duckdb.Error as error:
                missing = _MISSING.search(str(error))
                name = missing[1] if missing else None
                if name is not None and _have(rows, name):
                    raise Undecidable(f"rows have {_shown(name)} in several types") from None
                if name is None or self._target.names is not None or self._is_envelope:
                    raise Undecidable(_reason(error, name)) from None
                # Documents have any fields, and none of these has this one.
                table = table.append_column(name, pa.nulls(len(rows), pa.string()))

    def _evaluate(self, table: pa.Table) -> list[int]:
        connection = open_sandbox({TABLE: table}, memory_limit_mb=MEMORY_LIMIT_MB, threads=1)
        try:
            found = connection.execute(
                f"select {NUMBER} from {TABLE} where (\n{self._where}\n) order by {NUMBER}"
            ).fetchall()
        finally:
            connection.close()
        return [number for (number,) in found]

    def _table(self, rows: Sequence[Row]) -> pa.Table:
        whole = [self._nested(row) for row in rows]
        texts = [json.dumps(it, ensure_ascii=False, default=str) for it in whole]
        arrays: dict[str, Any] = {}
        for it in infer_columns(text.encode() for text in texts):
            arrays[it.name] = pa.array([row.get(it.name) for row in whole], it.type)
        if self._target.columns is not None and not self._is_envelope:
            arrays |= _declared(rows, self._target.columns)
        arrays["_value"] = pa.array(texts, pa.string())
        arrays[NUMBER] = pa.array(range(len(rows)), pa.int64())
        return pa.table(arrays)

    def _refuse_texts(self, rows: Sequence[Row]) -> None:
        """An index has lists and objects as the text of their JSON, as which a predicate about
        them would be answered wrongly."""
        if self._target.names is None or self._target.columns is not None:
            return
        for name in self._target.names:
            is_named = re.search(rf"\b{re.escape(name)}\b", self._where, re.IGNORECASE)
            if is_named and any(_is_nested(row.get(name)) for row in rows):
                raise Undecidable(f"the sink has {name} as text")

    def _nested(self, row: Row) -> Row:
        """The row as the record has it: columns of JSON are not text there."""
        json_columns = [it.name for it in self._target.columns or () if it.metadata]
        parsed = {name: _parsed(row[name]) for name in json_columns if row.get(name) is not None}
        found = {**row, **parsed}
        return {"after": found} if self._is_envelope else found


def _declared(rows: Sequence[Row], columns: pa.Schema) -> dict[str, pa.Array]:
    """With the types of the sink: in JSON, decimals and times are text."""
    from millstream.connect.sinks.columns import converter

    arrays = {}
    for column in columns:
        if column.metadata:
            continue
        convert = converter(column)
        values = [row.get(column.name) for row in rows]
        values = [None if it is None else convert(it) for it in values]
        arrays[column.name] = pa.array(values, column.type)
    return arrays


def _refuse(where: str, target: Target, is_envelope: bool) -> None:
    for path in _FIELD.findall(where):
        _check_path(path, target, is_envelope)
    rest = _FIELD.sub(" ", where)
    words = {it.lower() for it in re.findall(r"\w+", rest)}
    used = sorted(words & RECORD_COLUMNS)
    if "_value" in used:
        raise Undecidable("the predicate is about the text of the value, and rows have fields")
    if used:
        raise Undecidable(f"the predicate is about {', '.join(used)}, and rows do not have it")
    if "select" in words:
        raise Undecidable("the predicate has a query in it")


def _check_path(path: str, target: Target, is_envelope: bool) -> None:
    found = _PATH.fullmatch(path)
    if found is None:
        raise Undecidable("the predicate reads the value by a path that is not one of names")
    names = [found[1], *re.findall(r"[A-Za-z0-9_-]+", found[2])]
    if is_envelope:
        if names[0] != "after" or len(names) == 1:
            raise Undecidable("the predicate reads the value beside `after`, and rows have that")
        names = names[1:]
    name, is_nested = names[0], len(names) > 1
    if target.names is None:
        return  # documents have every field as it was
    if name not in target.names:
        raise Undecidable(f"the sink leaves out {_shown(name)}")
    if target.columns is None:
        if is_nested:
            raise Undecidable(f"the sink has {name} as text")
        return
    column = target.columns.field(name)
    if column.metadata:
        return
    if is_nested or not any(is_exact(column.type) for is_exact in _EXACT):
        raise Undecidable(f"the sink has {name} as {column.type}, not as the record wrote it")


def _have(rows: Sequence[tuple[str, Row]], name: str) -> bool:
    """SQL compares names without case."""
    return any(it.lower() == name.lower() for _, row in rows for it in row)


def _reason(error: duckdb.Error, missing: str | None) -> str:
    """Without the text of DuckDB, which quotes values of rows and of the predicate: receipts keep
    neither."""
    if missing is not None:
        return f"rows do not have {_shown(missing)}"
    return f"the predicate cannot be evaluated over rows ({type(error).__name__})"


def _shown(field: str) -> str:
    """A name that may be data itself is not shown."""
    return f"the field {field}" if field.isidentifier() else "a field"


def _is_nested(text: Any) -> bool:
    looks_so = isinstance(text, str) and text.startswith(("[", "{"))
    return looks_so and isinstance(_parsed(text), list | dict)


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text
