"""Values on their way into a topic, encrypted with subjects' keys (`millstream.shredding`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from millstream.pipelines.shredding import shredder_of

if TYPE_CHECKING:
    from millstream.pipelines.writing.options import Shredding
    from millstream.shredding.shredder import Shredder


def encrypted(values: Any, subjects: Any, wanted: Shredding, topic: str) -> pa.Array:
    """The values, each with the key of its subject; those without a value or a subject as they
    are."""
    shredder = shredder_of(wanted.keys)
    pairs = zip(values.cast(pa.binary()).to_pylist(), subjects.to_pylist(), strict=True)
    return pa.array(
        [
            value
            if value is None or subject is None
            else _encrypt(shredder, value, _name(subject), wanted, topic)
            for value, subject in pairs
        ],
        pa.binary(),
    )


def _name(subject: object) -> str:
    return subject.decode(errors="replace") if isinstance(subject, bytes) else str(subject)


def _encrypt(
    shredder: Shredder, value: bytes, subject: str, wanted: Shredding, topic: str
) -> bytes:
    if not wanted.fields:
        return shredder.encrypt(value, subject=subject, topic=topic)
    document = shredder.encrypt_fields(
        json.loads(value), wanted.fields, subject=subject, topic=topic
    )
    return json.dumps(document).encode()
