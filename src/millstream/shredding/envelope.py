"""The bytes of an encrypted value. No I/O.

     4  magic             "MSE1"
    16  key id            of the subject's key
    12  nonce             random
        ciphertext        AES-256-GCM, with its tag of 16 bytes

Authenticated with it are the key id, the topic and the field: a value that was copied to another
topic or field, or whose key id was changed, is refused. A field of a JSON document is text: "mse1:"
and the same bytes in Base64.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from millstream.errors import MillstreamError

MAGIC = b"MSE1"
TEXT_PREFIX = "mse1:"
KEY_ID_BYTES = 16
NONCE_BYTES = 12
TAG_BYTES = 16
_HEAD_BYTES = len(MAGIC) + KEY_ID_BYTES + NONCE_BYTES


class BadEnvelope(MillstreamError):
    """Bytes that claim to be an encrypted value, and are none."""


class Envelope(NamedTuple):
    key_id: bytes
    nonce: bytes
    ciphertext: bytes

    def pack(self) -> bytes:
        return b"".join((MAGIC, self.key_id, self.nonce, self.ciphertext))


def is_encrypted(value: bytes) -> bool:
    return value.startswith(MAGIC)


def unpack(value: bytes) -> Envelope:
    if not is_encrypted(value) or len(value) < _HEAD_BYTES + TAG_BYTES:
        raise BadEnvelope(f"{len(value)} bytes are no encrypted value")
    nonce_at = len(MAGIC) + KEY_ID_BYTES
    return Envelope(value[len(MAGIC) : nonce_at], value[nonce_at:_HEAD_BYTES], value[_HEAD_BYTES:])


def associated_data(key_id: bytes, topic: str, field: str) -> bytes:
    """What is authenticated with a value; each part with its length, so that none runs into the
    next."""
    parts = (key_id, topic.encode(), field.encode())
    return b"".join(len(part).to_bytes(4, "big") + part for part in parts)


def is_encrypted_text(value: object) -> bool:
    return isinstance(value, str) and value.startswith(TEXT_PREFIX)


def to_text(value: bytes) -> str:
    return TEXT_PREFIX + base64.b64encode(value).decode()


def from_text(text: str) -> bytes:
    try:
        return base64.b64decode(text.removeprefix(TEXT_PREFIX), validate=True)
    except binascii.Error as error:
        raise BadEnvelope(f"a field is no encrypted value: {error}") from error
