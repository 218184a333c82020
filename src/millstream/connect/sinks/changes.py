"""Records as changes of rows: inserts, updates, deletes and truncation, in the order of the log.

    debezium    Debezium's envelope as JSON, with or without its schema: op c, u and r set the row
                to `after`, d deletes it, t deletes all rows, m is skipped
    json        an object is the row. `__deleted` (Debezium's flat form), if it is true or "true",
                deletes it; other fields that start with `__` are left out

In both, a record without a value (a tombstone) deletes the row of its key. The columns of the key
come from the row, or else from the record's key: a JSON object with fields of these names, or, if
the key is a single column, any JSON value or text.

PostgreSQL does not send large values that an update leaves unchanged; the record has a placeholder
instead. Such a value is taken from the change before it, or else from the target's row.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
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
    unchanged: tuple[str, ...] = ()  # columns whose value the record does not have


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
        return {it.key: it.row for it in self.changes}


class BadRecord(ValueError):
    """The reason, and a message for people."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


_UNAVAILABLE_BYTES = UNAVAILABLE.encode()
_UNAVAILABLE_BASE64 = base64.b64encode(_UNAVAILABLE_BYTES)  # of a binary column
_PLACEHOLDERS = (UNAVAILABLE, _UNAVAILABLE_BASE64.decode(), [UNAVAILABLE])
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
# How an envelope begins if it has no row from before, and how its operation follows the row. What
# else it has is of no interest here, and is often longer than the row.
_BEGINNINGS = ('{"before":null,"after":', '{"before": null, "after": ')
_OPERATION = re.compile(r',\s?"op":\s?"([cur])"[,}]')
_TRUNCATED = object()
_SKIPPED = object()


def decode_changes(
    records: Sequence[tuple[bytes | None, bytes | None]],
    key_columns: tuple[str, ...],
    format: Format,
    *,
    may_truncate: bool = True,
    parse: Callable[[bytes], Any] | None = None,
    parse_key: Callable[[bytes], Any] | None = None,
) -> Changes:
    """The changes of (key, value) pairs; the number of a record is its index. Contents are JSON
    unless `parse` and `parse_key` are given, which raise `BadRecord`."""
    read = _reader(format, parse)
    found = Changes()
    add = found.changes.append
    single = key_columns[0] if len(key_columns) == 1 else None
    for number, (key, value) in enumerate(records):
        try:
            row: Any = None if value is None else read(value)
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
                values = key_of(row, key, key_columns, parse_key)
            if deleted:
                add(Change(number, values, None))
            elif value is not None and (
                _UNAVAILABLE_BYTES in value or _UNAVAILABLE_BASE64 in value
            ):
                add(Change(number, values, row, _take_placeholders(row)))
            else:
                add(Change(number, values, row))
        except BadRecord as error:
            found.failures.append(Failure(number, error.reason, str(error)))
    return found


def _reader(format: Format, parse: Callable[[bytes], Any] | None) -> Callable[[bytes], Any]:
    if parse is not None:
        shape = {"debezium": _read_envelope, "json": _read_row}[format]
        return lambda content: shape(parse(content))
    if format == "json":
        return lambda content: _read_row(parse_json(content))
    return _read_after


def _read_after(content: bytes) -> Any:
    """As `_read_envelope`; the row alone is parsed, if it is where it usually is.

    The rest is not checked beyond its operation and its last brace, which would take three times as
    long. Records have checksums, so a malformed rest is a defect of the producer; the row before it
    is complete, and is applied.
    """
    try:
        text = content.decode()
        for beginning in _BEGINNINGS:
            if text.startswith(beginning):
                row, end = _scan(text, len(beginning))
                if type(row) is dict and _OPERATION.search(text, end) and text[-1] == "}":
                    return row
    except (ValueError, StopIteration, RecursionError):
        pass  # the message comes from the whole of it
    return _read_envelope(parse_json(content))


def parse_json(content: bytes) -> Any:
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


def key_of(
    row: Row | None,
    key: bytes | None,
    columns: tuple[str, ...],
    parse: Callable[[bytes], Any] | None = None,
) -> Key:
    """The values of the key's columns; those that the row lacks are added to it."""
    if row is not None:
        values = tuple([row.get(name) for name in columns])
        if None not in values:
            return values
    if key is None:
        missing = [name for name in columns if row is None or row.get(name) is None]
        raise BadRecord(MISSING_FIELD, f"neither value nor key of the record has {missing}")
    parts = _key_parts((parse or _parse_key)(key), columns)
    for name in columns:
        value = parts.get(name) if row is None or row.get(name) is None else row[name]
        if value is None:
            raise BadRecord(MISSING_FIELD, f"neither value nor key of the record has {name!r}")
        parts[name] = value
    if row is not None:
        row.update({name: parts[name] for name in columns})
    return tuple(parts[name] for name in columns)


def _parse_key(key: bytes) -> Any:
    try:
        return json.loads(key)
    except (ValueError, RecursionError):
        try:
            return key.decode()
        except UnicodeDecodeError:
            raise BadRecord(MALFORMED, "the key is neither JSON nor text") from None


def _key_parts(parsed: Any, columns: tuple[str, ...]) -> Row:
    if isinstance(parsed, dict):
        inner = parsed.get("payload")
        return inner if "schema" in parsed and isinstance(inner, dict) else parsed
    if len(columns) == 1 and not isinstance(parsed, list):
        return {columns[0]: parsed}
    raise BadRecord(MALFORMED, f"the key is not an object with {list(columns)}")


def _take_placeholders(row: Row) -> tuple[str, ...]:
    names = tuple(name for name, value in row.items() if value in _PLACEHOLDERS)
    for name in names:
        del row[name]
    return names


def fill_unchanged(
    found: Changes, stored: Mapping[Key, Row], wanted: Container[str] | None
) -> None:
    """Give the changes the values that their records do not have: from the change before, or from
    the `stored` rows. If neither has one, the record is bad, unless the target does not want it."""
    if not any(it.unchanged for it in found.changes):
        return
    latest: dict[Key, Row | None] = {} if found.clear else dict(stored)
    filled = []
    for change in found.changes:
        before = latest.get(change.key) or {}
        names = [it for it in change.unchanged if wanted is None or it in wanted]
        lost = [it for it in names if it not in before]
        if lost:
            message = (
                f"the record does not contain the unchanged value of {lost}, nor does the target "
                "have it; use REPLICA IDENTITY FULL for the source table, or --rebuild"
            )
            found.failures.append(Failure(change.record, UNAVAILABLE_VALUE, message))
            continue
        if change.row is not None:
            change.row.update({name: before[name] for name in names})
        latest[change.key] = change.row
        filled.append(change._replace(unchanged=()))
    found.changes = filled
    found.failures.sort()


def document_id(key: Key) -> str:
    """The key as one string: a single value as it is, several as a JSON array."""
    if len(key) == 1:
        if type(key[0]) is int:
            return str(key[0])  # as JSON has it, in a tenth of the time
        return key[0] if isinstance(key[0], str) else json.dumps(key[0])
    return json.dumps(list(key), ensure_ascii=False, separators=(",", ":"))


def keyed(row: Row, columns: tuple[str, ...]) -> tuple[str, Row]:
    """A row with its key as one string."""
    return document_id(tuple(row[name] for name in columns)), row


def check_format(topic: str, format: str) -> None:
    if format not in FORMATS:
        raise ConfigError(
            f"topic {topic}: format is {format!r}; it must be one of {', '.join(FORMATS)}"
        )


def in_pieces(found: Changes, rows_max: int) -> Iterator[list[Change]]:
    """The changes, at most so many at a time."""
    for start in range(0, len(found.changes), rows_max):
        yield found.changes[start : start + rows_max]
