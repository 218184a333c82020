"""Replies that were given, by correlation id: a request that is sent again gets the same. Pure.

A record of the topic in which servers keep them has the correlation id as its key. The first byte
of its value says what follows:

    0   nothing: the reply has no value
    1   the value of the reply
    2   the error of the reply, as in the header millstream-error
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from millstream.rpc.headers import Failure

REPLIES_KEPT = 100_000
REPLY_BYTES_KEPT = 64 * 1024 * 1024
_NOTHING, _VALUE, _FAILURE = b"\0", b"\1", b"\2"


class Reply(NamedTuple):
    """What was answered."""

    value: bytes | None
    failure: Failure | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.value or b"")

    def encode(self) -> bytes:
        if self.failure is not None:
            return _FAILURE + self.failure.encode()
        return _NOTHING if self.value is None else _VALUE + self.value

    @classmethod
    def decode(cls, content: bytes | None) -> Reply | None:
        """None for what is no reply."""
        kind, rest = (content or b"")[:1], (content or b"")[1:]
        if kind == _FAILURE:
            return cls(None, Failure.decode(rest))
        if kind == _VALUE:
            return cls(rest)
        return cls(None) if content == _NOTHING else None


class _Kept(NamedTuple):
    reply: Reply
    until_ms: float


class ReplyMemory:
    """The newest replies by correlation id, bounded in number, bytes and time. The first reply to a
    request stays."""

    def __init__(
        self,
        lifetime_ms: float,
        count_max: int = REPLIES_KEPT,
        bytes_max: int = REPLY_BYTES_KEPT,
    ) -> None:
        self.lifetime_ms = lifetime_ms
        self._count_max, self._bytes_max = count_max, bytes_max
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, correlation_id: bytes | None, now_ms: float) -> Reply | None:
        kept = None if correlation_id is None else self._kept.get(correlation_id)
        return None if kept is None or kept.until_ms < now_ms else kept.reply

    def put(
        self, correlation_id: bytes | None, reply: Reply, given_at_ms: float, now_ms: float
    ) -> None:
        until_ms = given_at_ms + self.lifetime_ms
        if correlation_id is None or until_ms < now_ms or reply.size_bytes > self._bytes_max:
            return
        if self.get(correlation_id, now_ms) is not None:
            return
        self._remove(correlation_id)
        self._kept[correlation_id] = _Kept(reply, until_ms)
        self._size_bytes += reply.size_bytes
        while self._must_shrink(now_ms):
            self._remove(next(iter(self._kept)))

    def _must_shrink(self, now_ms: float) -> bool:
        if len(self._kept) > self._count_max or self._size_bytes > self._bytes_max:
            return True
        oldest = next(iter(self._kept.values()), None)
        return oldest is not None and oldest.until_ms < now_ms

    def _remove(self, correlation_id: bytes) -> None:
        removed = self._kept.pop(correlation_id, None)
        self._size_bytes -= 0 if removed is None else removed.reply.size_bytes
