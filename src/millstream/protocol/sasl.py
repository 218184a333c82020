"""SaslHandshake (v0-1) and SaslAuthenticate (v0-2), by hand: every connection begins with them.

Clients may open thousands of connections a second after a restart, and these two messages took half
of the CPU time of a login when they were decoded like the others. Bytes that follow the known
fields of a request are ignored, as in Kafka.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from millstream.errors import ProtocolError
from millstream.protocol.wire import (
    INT16,
    INT32,
    INT64,
    NO_TAGS,
    read_nullable_bytes,
    read_string,
    write_nullable_string,
    write_unsigned_varint,
)

HANDSHAKE_KEY = 17
AUTHENTICATE_KEY = 36
_FIRST_FLEXIBLE = 2  # of SaslAuthenticate; SaslHandshake has no flexible version


def decode_handshake(body: memoryview) -> str:
    """The mechanism. Raises `ProtocolError`."""
    try:
        return read_string(body, 0, compact=False)[0]
    except (struct.error, IndexError) as error:
        raise ProtocolError("SaslHandshake is truncated") from error


def decode_authenticate(version: int, body: memoryview) -> bytes:
    """The client's token. Raises `ProtocolError`."""
    try:
        token, _ = read_nullable_bytes(body, 0, compact=version >= _FIRST_FLEXIBLE, wide=True)
    except (struct.error, IndexError) as error:
        raise ProtocolError("SaslAuthenticate is truncated") from error
    if token is None:
        raise ProtocolError("null in a non-nullable field")
    return bytes(token)


def encode(api_key: int, version: int, fields: Mapping[str, Any]) -> bytes:
    """The response's body, from its fields."""
    if api_key == HANDSHAKE_KEY:
        names = [name.encode() for name in fields["mechanisms"]]
        strings = b"".join(INT16.pack(len(name)) + name for name in names)
        return INT16.pack(fields["error_code"]) + INT32.pack(len(names)) + strings
    token: bytes = fields["auth_bytes"]
    message: str | None = fields.get("error_message")
    lifetime = INT64.pack(fields.get("session_lifetime", 0)) if version > 0 else b""
    is_flexible = version >= _FIRST_FLEXIBLE
    size = len(token)
    return b"".join(
        (
            INT16.pack(fields["error_code"]),
            write_nullable_string(message, compact=is_flexible),
            write_unsigned_varint(size + 1) if is_flexible else INT32.pack(size),
            token,
            lifetime,
            NO_TAGS if is_flexible else b"",
        )
    )
