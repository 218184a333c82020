"""A response that is completed later, and the type of encoded responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from millstream.broker._core import Deferred, DeferredAppend
from millstream.protocol.wire import Piece

__all__ = ["Buffers", "Deferred", "DeferredAppend", "DelayedProduce"]


class DelayedProduce(Deferred):
    """A Produce request that waits before anything is appended. It delays the connection's later
    requests: they would overtake it."""

    def __init__(self) -> None:
        super().__init__(exclusive=True)


Buffers: TypeAlias = bytes | Sequence[Piece]
"""An encoded response body: whole, or in pieces that are written one after the other."""
