"""A response that is completed later, and the type of encoded responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from millstream.protocol.wire import Buffer

Buffers: TypeAlias = bytes | Sequence[Buffer]
"""An encoded response body: whole, or in pieces that are written one after the other."""


class Deferred:
    """A response body that a raw handler completes later: no Task, no Future.

    `exclusive` delays the connection's later requests until this one is answered. Kafka does this
    for every request; here only those with large answers need it.
    """

    # On the class: thousands of these are made per second, and few need all of it.
    exclusive = False
    on_cancel: Callable[[], None] | None = None  # called when the client is gone
    _body: Buffers | None = None
    _is_complete = False
    _on_complete: Callable[[Buffers | None], None] | None = None

    def __init__(self, *, exclusive: bool = False) -> None:
        if exclusive:
            self.exclusive = True

    def complete(self, body: Buffers | None) -> None:
        """Answer; None closes the connection instead. Only the first call counts."""
        if self._is_complete:
            return
        self._is_complete = True
        self._body = body
        if self._on_complete is not None:
            self._on_complete(body)

    def cancel(self) -> None:
        """The client is gone: stop working on the answer."""
        if not self._is_complete:
            self._is_complete = True
            if self.on_cancel is not None:
                self.on_cancel()

    def when_complete(self, callback: Callable[[Buffers | None], None]) -> None:
        """Call back with the body, at once if it is complete."""
        if self._is_complete:
            callback(self._body)
        else:
            self._on_complete = callback
