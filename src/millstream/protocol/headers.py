"""Request and response headers.

    request   api key int16 | api version int16 | correlation id int32 | client id (nullable string)
              and, in header version 2 (flexible API versions), tagged fields
    response  correlation id int32, and, in header version 1 (flexible), tagged fields

The client id is never compact, not even in header version 2. ApiVersions' response header is
version 0 always: the client does not know yet which versions the broker supports. Header version 0
(without a client id) was only used by ControlledShutdown v0, which no current broker supports.
"""

from __future__ import annotations

from struct import Struct, error

from millstream.errors import ProtocolError
from millstream.protocol.wire import Buffer, skip_tags

API_VERSIONS_KEY = 18

_FIXED = Struct(">hhih")
_FIXED_BYTES = _FIXED.size


def parse_fixed(frame: Buffer) -> tuple[int, int, int, int]:
    """(api key, api version, correlation id, end of the client id): what all headers share."""
    try:
        api_key, api_version, correlation_id, client_bytes = _FIXED.unpack_from(frame)
    except error:
        raise ProtocolError(f"request of {len(frame)} bytes has no header") from None
    end = _FIXED_BYTES + client_bytes if client_bytes > 0 else _FIXED_BYTES
    if end > len(frame):
        raise ProtocolError("client id exceeds the request")
    return api_key, api_version, correlation_id, end


def client_id_of(frame: Buffer, end: int) -> str | None:
    """The client id that ends there, according to `parse_fixed`; None for null."""
    if end == _FIXED_BYTES and frame[8] & 0x80:
        return None
    return str(frame[_FIXED_BYTES:end], "utf-8", "replace")


def body_start(frame: Buffer, client_id_end: int, *, flexible: bool) -> int:
    """The start of the request's body."""
    if not flexible:
        return client_id_end
    try:
        return skip_tags(frame, client_id_end)
    except IndexError:
        raise ProtocolError("request truncated inside its header") from None
