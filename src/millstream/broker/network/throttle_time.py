"""throttle_time_ms in responses that are encoded already.

Whether a client is throttled is decided after its request was handled, for every API, so the field
is set in the bytes of the response. It is the first field of most responses. Exceptions:

    Produce       the last field, followed by tagged fields, if it is flexible
    ApiVersions   the field after the array of APIs; in the first versions the last one
    OffsetDelete  the field after the error code

A response without such a field, like most between brokers, stays as it is: the connection is muted.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, TypeAlias

from millstream.broker.deferred import Buffers, Deferred
from millstream.protocol.messages import begins_with_throttle_time
from millstream.protocol.wire import read_unsigned_varint

if TYPE_CHECKING:
    from millstream.protocol.apis import Api

_INT32 = Struct(">i")
_NO_ERRORS_END = bytes(5)  # of a flexible Produce response: no throttle time, no tagged fields
_ERROR_CODE_BYTES = 2
_API_RANGE_BYTES = 7  # key, lowest and highest version, no tagged fields

Answer: TypeAlias = Buffers | Deferred | None


def after(answer: Answer, change: Callable[[Buffers], Buffers]) -> Answer:
    """The answer with its body changed, as soon as there is one."""
    if answer is None:
        return None
    return _Changed(answer, change) if isinstance(answer, Deferred) else change(answer)


class _Changed(Deferred):
    """Another deferred response, whose body is changed when it is complete."""

    def __init__(self, inner: Deferred, change: Callable[[Buffers], Buffers]) -> None:
        super().__init__(exclusive=inner.exclusive)
        self.on_cancel = inner.cancel
        inner.when_done(
            lambda done: self.complete(None if done.body is None else change(done.body))
        )


def set_throttle_time(api: Api, version: int, body: Buffers, ms: int) -> Buffers:
    """The body with a throttle time, unless it has a longer one."""
    if not isinstance(body, bytes):  # Fetch and ShareFetch
        first, *rest = body
        assert isinstance(first, bytes)
        return [_set_at(first, 0, ms), *rest]
    at = _position(api, version, body)
    return body if at is None else _set_at(body, at, ms)


def _position(api: Api, version: int, body: bytes) -> int | None:
    """Where the throttle time is; None if there is none, or it cannot be found."""
    match api.name:
        case "produce" if version < api.first_flexible:
            return len(body) - _INT32.size
        case "produce":
            # With the endpoints of new leaders it is not at the end: such a client has other work.
            # A request that a backlog policy refuses has a throttle time of its own.
            at = len(body) - len(_NO_ERRORS_END)
            return at if body.endswith(_NO_ERRORS_END) else None
        case "api_versions" if version == 0:
            return None
        case "api_versions" if version < api.first_flexible:
            return len(body) - _INT32.size
        case "api_versions":
            count, at = read_unsigned_varint(body, _ERROR_CODE_BYTES)
            return at + (count - 1) * _API_RANGE_BYTES
        case "offset_delete":
            return _ERROR_CODE_BYTES
        case name:
            return 0 if begins_with_throttle_time(name, version) else None


def _set_at(body: bytes, at: int, ms: int) -> bytes:
    (known_ms,) = _INT32.unpack_from(body, at)
    if known_ms >= ms:
        return body
    return b"".join((body[:at], _INT32.pack(ms), body[at + _INT32.size :]))
