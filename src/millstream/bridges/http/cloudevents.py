"""CloudEvents 1.0: HTTP requests as records, and records as requests.

    binary       headers ce-type, ...: the record has headers ce_type, ..., the value is the body
    structured   application/cloudevents+json: the value is the body as it is
    batched      application/cloudevents-batch+json: one structured record for each event

The key of a record is the attribute `partitionkey`, if there is one.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from millstream.admin.outgoing import Outgoing
from millstream.bridges.http.shapes import BadRequest, parse_json

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"
REQUIRED = ("id", "source", "specversion", "type")
EVENTS_MAX = 10_000
CONTENT_TYPE = "content-type"
_ATTRIBUTE = re.compile(r"[a-z0-9]{1,20}")


def parse_request(headers: Mapping[str, str], body: bytes) -> list[Outgoing]:
    """The records of a request; names of headers are in lower case. Raises `BadRequest`."""
    media = headers.get(CONTENT_TYPE, "").partition(";")[0].strip().lower()
    if media == STRUCTURED:
        return [_structured(parse_json(body), body)]
    if media == BATCHED:
        events = parse_json(body)
        if not isinstance(events, list) or len(events) > EVENTS_MAX:
            raise BadRequest(f"a batch is a list of at most {EVENTS_MAX} events")
        return [_structured(it, _encode(it)) for it in events]
    return [_binary(headers, body)]


def _structured(event: Any, body: bytes) -> Outgoing:
    if not isinstance(event, dict):
        raise BadRequest("an event is a JSON object")
    _check(event)
    return Outgoing(
        value=body,
        key=_key(event.get("partitionkey")),
        headers=[(CONTENT_TYPE, f"{STRUCTURED}; charset=UTF-8".encode())],
    )


def _binary(headers: Mapping[str, str], body: bytes) -> Outgoing:
    attributes = {
        name.removeprefix("ce-"): unquote(value)
        for name, value in headers.items()
        if name.startswith("ce-")
    }
    if not attributes:
        raise BadRequest(f"no event: neither ce-* headers nor content type {STRUCTURED}", 400)
    _check(attributes)
    kept: list[tuple[str, bytes | None]] = [
        (f"ce_{name}", value.encode()) for name, value in sorted(attributes.items())
    ]
    if CONTENT_TYPE in headers:
        kept.append((CONTENT_TYPE, headers[CONTENT_TYPE].encode()))
    return Outgoing(value=body, key=_key(attributes.get("partitionkey")), headers=kept)


def _check(attributes: Mapping[str, Any]) -> None:
    for name in REQUIRED:
        value = attributes.get(name)
        if not isinstance(value, str) or not value:
            raise BadRequest(f"the event lacks the attribute {name!r}")
    if attributes["specversion"] != "1.0":
        raise BadRequest(f"specversion {attributes['specversion']!r}: 1.0 is supported")
    known = ("data", "data_base64")
    for name in attributes:
        if name not in known and not _ATTRIBUTE.fullmatch(name):
            raise BadRequest(f"attribute {name!r}: use lower-case letters and digits, at most 20")


def _key(given: Any) -> bytes | None:
    return given.encode() if isinstance(given, str) and given else None


def _encode(event: Any) -> bytes:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def request_headers(
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    headers: Iterable[tuple[str, bytes | None]],
) -> dict[str, str]:
    """A record as an event in binary mode. One that is no event gets attributes that name it."""
    found = {name: (value or b"").decode("utf-8", "replace") for name, value in headers}
    content_type = found.get(CONTENT_TYPE, "application/octet-stream")
    if content_type.startswith(STRUCTURED):
        return {CONTENT_TYPE: content_type}
    attributes = {it.removeprefix("ce_"): found[it] for it in found if it.startswith("ce_")}
    if not all(attributes.get(name) for name in REQUIRED):
        attributes = {
            "specversion": "1.0",
            "id": f"{topic}-{partition}-{offset}",
            "source": f"/topics/{quote(topic)}",
            "type": "millstream.record",
            **_time(timestamp_ms),
        } | attributes
    sent = {f"ce-{name}": _safe(value) for name, value in sorted(attributes.items())}
    return sent | {CONTENT_TYPE: "".join(it for it in content_type if " " <= it <= "~")}


def _time(timestamp_ms: int) -> dict[str, str]:
    """The attribute `time`, unless the timestamp is beyond the calendar."""
    try:
        moment = datetime.datetime.fromtimestamp(max(timestamp_ms, 0) / 1000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return {}
    return {"time": moment.isoformat().replace("+00:00", "Z")}


def _safe(value: str) -> str:
    """A value as a header of HTTP may have it: what is not printable ASCII in percent."""
    return "".join(
        it if " " <= it <= "~" and it not in '%"' else quote(it, safe="") for it in value
    )
