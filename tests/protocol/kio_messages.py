"""kio as the judge of our codecs: any message, by API and version, from plain fields.

A field that a version does not know is left out, so one set of fields serves all versions.
"""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from kio.serial import entity_reader

from tests.peers.wire import build, encode, entity_class, nested_class


def kio_request(api: str, version: int, fields: dict[str, Any]) -> bytes:
    cls = entity_class(api, version, "request")
    return encode(build(cls, _known(cls, fields)))


def kio_response(api: str, version: int, body: bytes) -> Any:
    """The decoded response; all bytes must belong to it."""
    entity, size = entity_reader(entity_class(api, version, "response"))(body, 0)
    assert size == len(body)
    return entity


def _known(cls: type[Any], fields: dict[str, Any]) -> dict[str, Any]:
    hints = get_type_hints(cls)
    known = {}
    for field in dataclasses.fields(cls):
        if field.name not in fields:
            continue
        value = fields[field.name]
        nested, is_array = nested_class(hints[field.name])
        if nested is not None and value is not None:
            value = [_known(nested, it) for it in value] if is_array else _known(nested, value)
        known[field.name] = value
    return known
