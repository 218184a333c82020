"""Bodies and answers of Confluent's REST API: v2 for batches, v3 for single records and streams.

v2, also of Strimzi's bridge and Redpanda's proxy (their `headers` included):

    POST /topics/orders        {"records": [{"key": ..., "value": ..., "partition": 0}]}
                               {"offsets": [{"partition": 0, "offset": 17}]}

v3, any number of objects in a request, one answer for each:

    POST /v3/clusters/ID/topics/orders/records     {"value": {"type": "JSON", "data": ...}}
                                                   {"error_code": 200, "offset": 17, ...}
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from millstream.admin.outgoing import ANY_PARTITION, Outgoing
from millstream.errors import MillstreamError

RECORDS_MAX = 10_000  # of a v2 request
UNPROCESSABLE = 422
_V2 = {
    "application/vnd.kafka.json.v2+json": "json",
    "application/vnd.kafka.binary.v2+json": "binary",
    "application/vnd.kafka.text.v2+json": "text",
    "application/vnd.kafka.v2+json": "json",
    "application/json": "json",
}
_V3_TYPES = ("BINARY", "JSON", "STRING")
NESTING_MAX = 500  # objects within an object of a stream
_SPACE = re.compile(rb"[ \t\r\n]*+")
_STRUCTURE = re.compile(rb'["{}]')
_WITHIN_STRING = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


class BadRequest(MillstreamError):
    """A request that cannot become records."""

    def __init__(self, message: str, status: int = UNPROCESSABLE) -> None:
        super().__init__(message)
        self.status = status


class Written(NamedTuple):
    """Where a record is, or why it is not."""

    partition: int = -1
    offset: int = -1
    timestamp_ms: int = -1
    status: int = 200
    error: str | None = None


def parse_json(body: bytes | str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}", 400) from None


def embedded_format(content_type: str) -> str:
    """The format of keys and values, by the type of a v2 request."""
    found = _V2.get(content_type.partition(";")[0].strip().lower())
    if found is None:
        known = ", ".join(_V2)
        raise BadRequest(f"content type {content_type!r}: use one of {known}", 415)
    return found


def parse_v2(body: bytes, content_type: str, partition: int | None = None) -> list[Outgoing]:
    """The records of a v2 request; `partition` is that of its path."""
    kind = embedded_format(content_type)
    given = parse_json(body)
    records = given.get("records") if isinstance(given, dict) else None
    if not isinstance(records, list) or not records:
        raise BadRequest('"records" must be a list with at least one record')
    if len(records) > RECORDS_MAX:
        raise BadRequest(f"{len(records)} records; at most {RECORDS_MAX} in a request")
    return [_v2_record(it, index, kind, partition) for index, it in enumerate(records)]


def _v2_record(given: Any, index: int, kind: str, partition: int | None) -> Outgoing:
    where = f"record {index}"
    if not isinstance(given, dict):
        raise BadRequest(f"{where} is not an object")
    if "value" not in given and "key" not in given:
        raise BadRequest(f"{where} has neither key nor value")
    own = given.get("partition")
    if own is not None and partition is not None:
        raise BadRequest(f"{where}: the partition is in the path already")
    return Outgoing(
        value=_v2_data(given.get("value"), kind, f"{where}: value"),
        key=_v2_data(given.get("key"), kind, f"{where}: key"),
        headers=_headers(given.get("headers"), "key", where),
        partition=_partition(own if partition is None else partition, where),
        timestamp_ms=_timestamp(given.get("timestamp"), where),
    )


def _v2_data(given: Any, kind: str, where: str) -> bytes | None:
    if given is None:
        return None
    if kind == "json":
        return _compact(given)
    if not isinstance(given, str):
        raise BadRequest(f"{where} must be a string")
    return _utf8(given, where) if kind == "text" else _base64(given, where)


def parse_v3(given: Any) -> Outgoing:
    """The record of one object of a v3 request."""
    if not isinstance(given, dict):
        raise BadRequest("a record must be an object", 400)
    return Outgoing(
        value=_v3_data(given.get("value"), "value"),
        key=_v3_data(given.get("key"), "key"),
        headers=_headers(given.get("headers"), "name", "record"),
        partition=_partition(given.get("partition_id"), "record"),
        timestamp_ms=0,
    )


def _v3_data(given: Any, where: str) -> bytes | None:
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if kind not in _V3_TYPES:
        raise BadRequest(f"{where}: type must be one of {', '.join(_V3_TYPES)}")
    data = given.get("data")
    if data is None:
        return None
    if kind == "JSON":
        return _compact(data)
    if not isinstance(data, str):
        raise BadRequest(f"{where}: data must be a string")
    return _utf8(data, where) if kind == "STRING" else _base64(data, where)


def _compact(given: Any) -> bytes:
    return json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _utf8(given: str, where: str) -> bytes:
    """JSON can have half of a surrogate pair, which is no character."""
    try:
        return given.encode()
    except UnicodeEncodeError:
        raise BadRequest(f"{where} has a surrogate without its other half") from None


def check_header_name(name: str, where: str) -> str:
    """The name, if a record can have it. The C library ends the process at a name that is not
    UTF-8, and cuts one at NUL."""
    if b"\0" in _utf8(name, f"{where}: the name of a header"):
        raise BadRequest(f"{where}: the name of a header has a NUL")
    return name


def _base64(given: str, where: str) -> bytes:
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        raise BadRequest(f"{where} is not base64") from None


def _headers(given: Any, name: str, where: str) -> list[tuple[str, bytes | None]]:
    """Headers of a record: `name` is what their names are called; values are base64."""
    if given is None:
        return []
    found: list[tuple[str, bytes | None]] = []
    for item in given if isinstance(given, list) else [given]:
        if not isinstance(item, dict) or not isinstance(item.get(name), str):
            raise BadRequest(f'{where}: headers must be [{{"{name}": ..., "value": base64}}]')
        value = item.get("value")
        if value is not None and not isinstance(value, str):
            raise BadRequest(f"{where}: the value of a header must be base64")
        header = check_header_name(item[name], where)
        found.append((header, None if value is None else _base64(value, where)))
    return found


def _partition(given: Any, where: str) -> int:
    if given is None:
        return ANY_PARTITION
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < 2**31:
        raise BadRequest(f"{where}: partition must be a number from 0")
    return given


def _timestamp(given: Any, where: str) -> int:
    if given is None:
        return 0
    if isinstance(given, bool) or not isinstance(given, int) or not 0 < given < 2**63:
        raise BadRequest(f"{where}: timestamp must be milliseconds since 1970")
    return given


class ObjectStream:
    """JSON objects from a body that arrives in pieces, one after the other. Each byte is looked at
    once, however small the pieces are."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._rest = bytearray()
        self._at = 0  # up to where `_rest` is scanned
        self._depth = 0
        self._is_in_string = False

    @property
    def size(self) -> int:
        """How many bytes wait for the end of their object."""
        return len(self._rest)

    def feed(self, piece: bytes) -> Iterator[Any]:
        """The objects that are complete. Raises `BadRequest`."""
        self._rest += piece
        begin = 0
        while (end := self._end_of_object(begin)) is not None:
            yield _object(bytes(self._rest[begin:end]))
            begin = end
        del self._rest[:begin]
        self._at -= begin
        if len(self._rest) > self._size_max:
            raise BadRequest(f"no complete object in {self._size_max} bytes", 413)

    def finish(self) -> None:
        """Raises `BadRequest` if the body ends within an object."""
        if self._rest.strip():
            raise BadRequest("the body ends within an object, or is not JSON", 400)

    def _end_of_object(self, begin: int) -> int | None:
        """Scan on to the end of the object that begins after spaces, if it has come."""
        if self._depth == 0 and not self._enter(begin):
            return None
        while True:
            if self._is_in_string and not self._leave_string():
                return None
            found = _STRUCTURE.search(self._rest, self._at)
            if found is None:
                self._at = len(self._rest)
                return None
            self._at = found.end()
            match found[0]:
                case b'"':
                    self._is_in_string = True
                case b"{":
                    self._depth += 1
                    if self._depth > NESTING_MAX:
                        raise BadRequest("an object is nested too deeply", 400)
                case _:
                    self._depth -= 1
                    if self._depth == 0:
                        return self._at

    def _enter(self, begin: int) -> bool:
        """Go to the brace that opens the next object; False if it has not come."""
        spaces = _SPACE.match(self._rest, begin)
        assert spaces is not None  # none match as well
        self._at = spaces.end()
        if self._at == len(self._rest):
            return False
        if self._rest[self._at] != ord("{"):
            shown = bytes(self._rest[self._at : self._at + 20])
            raise BadRequest(f"expected an object, not {shown!r}", 400)
        self._at += 1
        self._depth = 1
        return True

    def _leave_string(self) -> bool:
        """Go behind the quote that ends the string; False if it has not come."""
        within = _WITHIN_STRING.match(self._rest, self._at)
        assert within is not None  # nothing matches as well
        self._at = within.end()
        if self._at == len(self._rest) or self._rest[self._at] != ord('"'):
            return False  # at the end, or before a backslash whose character has not come
        self._at += 1
        self._is_in_string = False
        return True


def _object(content: bytes) -> Any:
    try:
        return json.loads(content.decode())
    except UnicodeDecodeError:
        raise BadRequest("the body is not UTF-8", 400) from None
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}", 400) from None


def answer_v2(written: list[Written]) -> dict[str, Any]:
    offsets = [
        {"partition": it.partition, "offset": it.offset}
        if it.error is None
        else {"partition": None, "offset": None, "error_code": it.status, "error": it.error}
        for it in written
    ]
    return {"offsets": offsets, "key_schema_id": None, "value_schema_id": None}


def answer_v3(
    written: Written, cluster: str, topic: str, record: Outgoing | None
) -> dict[str, Any]:
    if written.error is not None:
        return {"error_code": written.status, "message": written.error}
    answer: dict[str, Any] = {
        "error_code": 200,
        "cluster_id": cluster,
        "topic_name": topic,
        "partition_id": written.partition,
        "offset": written.offset,
    }
    if record is not None:
        answer |= {
            name: {"size": len(data)}
            for name, data in (("key", record.key), ("value", record.value))
            if data is not None
        }
    return answer
