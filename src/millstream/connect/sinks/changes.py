"""Records as changes of rows: inserts, updates, deletes and truncation, in the order of the log.

    debezium    Debezium's envelope as JSON, with or without its schema: op c, u and r set the row
                to `after`, d deletes it, t deletes all rows, m is skipped
    json        an object is the row. `__deleted` (Debezium's flat form), if it is true or "true",
                deletes it; other fields that start with `__` are left out

In both, a record without a value (a tombstone) deletes the row of its key. The columns of the key
come from the row, or else from the record's key: a JSON object with fields of these names, or, if
the key is a single column, any JSON value or text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from millstream.errors import ConfigError

Format = Literal["debezium", "json"]
FORMATS: tuple[str, ...] = get_args(Format)
UNAVAILABLE = "__debezium_unavailable_value"
DELETED = "__deleted"
MALFORMED = "malformed"
WRONG_TYPE = "wrong type"
MISSING_FIELD = "missing field"
UNAVAILABLE_VALUE = "unavailable value"

Row = dict[str, Any]
Key = tuple[Any, ...]


class Failure(NamedTuple):
    """A record that cannot be applied."""

    record: int  # its number in the batch
    reason: str
    message: str


class Change(NamedTuple):
    """The row of a key as of a record; None: deleted."""

    record: int
    key: Key
    row: Row | None


@dataclass
class Changes:
    """Changes of one table, in order. With `clear`, all rows from before are deleted first."""

    cleared_by: int | None = None  # the record that deletes all rows from before
    changes: list[Change] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)

    @property
    def clear(self) -> bool:
        return self.cleared_by is not None

    def last_by_key(self) -> dict[Key, Row | None]:
        """What remains of each key."""
        return {key: row for _, key, row in self.changes}


class BadRecord(ValueError):
    """The reason, and a message for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


_UNAVAILABLE_BYTES = UNAVAILABLE.encode()
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_TRUNCATED = object()
_SKIPPED = object()


def decode_changes(
    records: Sequence[tuple[bytes | None, bytes | None]],
    key_columns: tuple[str, ...],
    format: Format,
    *,
    may_truncate: bool = True,
) -> Changes:
    """The changes of (key, value) pairs; the number of a record is its index."""
    read: Callable[[Any], Any] = {"debezium": _read_envelope, "json": _read_row}[format]
    found = Changes()
    add = found.changes.append
    single = key_columns[0] if len(key_columns) == 1 else None
    for number, (key, value) in enumerate(records):
        try:
            row: Any = None if value is None else read(_parse(value))
            if row is _SKIPPED:
                continue
            if row is _TRUNCATED:
                if not may_truncate:
                    raise BadRecord(
                        MALFORMED,
                        "the truncation of a topic with several partitions has no place in the "
                        "order of their records; use one partition",
                    )
                found.cleared_by = number
                found.changes.clear()
                continue
            deleted = row is None or row.pop(DELETED, False)
            if single is not None and row is not None and row.get(single) is not None:
                values: Key = (row[single],)
            else:
                values = key_of(row, key, key_columns)
            if not deleted and value is not None and _UNAVAILABLE_BYTES in value:
                _refuse_unavailable(row)
            add(Change(number, values, None if deleted else row))
        except BadRecord as error:
            found.failures.append(Failure(number, error.reason, str(error)))
    return found


def _parse(content: bytes) -> Any:
    try:
        text = content.decode()
        try:
            parsed, end = _scan(text, 0)  # half the time of json.loads for a record
        except StopIteration:
            return json.loads(text)  # for spaces before it, or for the message
        return parsed if end == len(text) else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRecord(MALFORMED, f"the value is not JSON: {error}") from error


def _read_envelope(value: Any) -> Any:
    """The row, marked if it is deleted."""
    if type(value) is dict and "payload" in value and "op" not in value:
        value = value["payload"]
        if value is None:
            return None
    if type(value) is not dict or "op" not in value:
        raise BadRecord(
            MALFORMED, 'the value is not a Debezium envelope, which has "op"; try format "json"'
        )
    operation = value["op"]
    if operation in ("c", "u", "r"):
        row = value.get("after")
    elif operation == "d":
        row = value.get("before") or {}
        if type(row) is dict:
            row[DELETED] = True
    elif operation == "t":
        return _TRUNCATED
    elif operation == "m":
        return _SKIPPED
    else:
        raise BadRecord(MALFORMED, f"unknown operation in the envelope: {operation!r}")
    if type(row) is not dict:
        raise BadRecord(MALFORMED, f"the envelope of operation {operation!r} has no row")
    return row


def _read_row(value: Any) -> Any:
    if type(value) is not dict:
        raise BadRecord(MALFORMED, "the value is not a JSON object")
    deleted = value.get(DELETED) in (True, "true")
    if any(name.startswith("__") for name in value):
        value = {name: it for name, it in value.items() if not name.startswith("__")}
    if deleted:
        value[DELETED] = True
    return value


def key_of(row: Row | None, key: bytes | None, columns: tuple[str, ...]) -> Key:
    """The values of the key's columns; those that the row lacks are added to it."""
    if row is not None:
        values = tuple([row.get(name) for name in columns])
        if None not in values:
            return values
    if key is None:
        missing = [name for name in columns if row is None or row.get(name) is None]
        raise BadRecord(MISSING_FIELD, f"neither value nor key of the record has {missing}")
    parts = _key_parts(key, columns)
    for name in columns:
        value = parts.get(name) if row is None or row.get(name) is None else row[name]
        if value is None:
            raise BadRecord(MISSING_FIELD, f"neither value nor key of the record has {name!r}")
        parts[name] = value
    if row is not None:
        row.update({name: parts[name] for name in columns})
    return tuple(parts[name] for name in columns)


def _key_parts(key: bytes, columns: tuple[str, ...]) -> Row:
    try:
        parsed = json.loads(key)
    except (ValueError, RecursionError):
        try:
            parsed = key.decode()
        except UnicodeDecodeError:
            raise BadRecord(MALFORMED, "the key is neither JSON nor text") from None
    if isinstance(parsed, dict):
        inner = parsed.get("payload")
        return inner if "schema" in parsed and isinstance(inner, dict) else parsed
    if len(columns) == 1 and not isinstance(parsed, list):
        return {columns[0]: parsed}
    raise BadRecord(MALFORMED, f"the key is not a JSON object with {list(columns)}")


def _refuse_unavailable(row: Row) -> None:
    names = [name for name, value in row.items() if value == UNAVAILABLE]
    if not names:
        return  # it is in another part of the record
    raise BadRecord(
        UNAVAILABLE_VALUE,
        f"the record does not contain the unchanged value of {names}; use REPLICA IDENTITY FULL "
        "for the source table",
    )


def document_id(key: Key) -> str:
    """The key as one string: a single value as it is, several as a JSON array."""
    if len(key) == 1:
        return key[0] if isinstance(key[0], str) else json.dumps(key[0])
    return json.dumps(list(key), ensure_ascii=False, separators=(",", ":"))


def check_format(topic: str, format: str) -> None:
    if format not in FORMATS:
        raise ConfigError(
            f"topic {topic}: format is {format!r}; it must be one of {', '.join(FORMATS)}"
        )


def in_pieces(found: Changes, rows_max: int) -> Iterator[list[Change]]:
    """The changes, at most so many at a time."""
    for start in range(0, len(found.changes), rows_max):
        yield found.changes[start : start + rows_max]
