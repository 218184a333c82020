"""A response that is completed later, and the type of encoded responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from millstream.broker.completion import Completion
from millstream.protocol.wire import Buffer

Buffers: TypeAlias = bytes | Sequence[Buffer]
"""An encoded response body: whole, or in pieces that are written one after the other."""


class Deferred(Completion):
    """A response body that a raw handler completes later: no Task, no Future.

    `exclusive` delays the connection's later requests until this one is answered. Kafka does this
    for every request; here only those with large answers need it.
    """

    # On the class: thousands of these are made per second, and few need all of it.
    exclusive = False
    on_cancel: Callable[[], None] | None = None  # called when the client is gone
    body: Buffers | None = None  # None closes the connection

    def __init__(self, *, exclusive: bool = False) -> None:
        if exclusive:
            self.exclusive = True

    def complete(self, body: Buffers | None) -> None:
        """Answer; None closes the connection instead. Only the first call counts."""
        if not self.is_done:
            self.body = body
            self.finish()

    def cancel(self) -> None:
        """The client is gone: stop working on the response, and call nobody back."""
        if not self.is_done:
            self.is_done = True
            self._callbacks = ()
            if self.on_cancel is not None:
                self.on_cancel()
