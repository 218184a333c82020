"""A one-shot completion with callbacks.

No Future and no Task: callbacks run at once, in the turn of the event loop that completes it, and
in the order in which they were added. A callback that raises is logged and does not affect the
others or the caller: they may be acknowledgements of other clients.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger(__name__)


class Completion:
    """Base class: a subclass carries the result, and `finish` marks it as done."""

    # On the class: thousands of these are made per second, and many never wait.
    is_done = False
    _callbacks: tuple[Callable[[Any], None], ...] = ()

    def when_done(self, callback: Callable[[Self], None]) -> None:
        """Call back once with this object, at once if it is done already."""
        if self.is_done:
            callback(self)
        else:
            self._callbacks += (callback,)

    def finish(self) -> None:
        """Mark it as done and run the callbacks. Later calls do nothing."""
        self.is_done = True
        callbacks = self._callbacks
        if callbacks:
            self._callbacks = ()
            for callback in callbacks:
                try:
                    callback(self)
                except Exception:
                    logger.exception("a callback of %r failed", self)

    def __await__(self) -> Generator[Any, None, Self]:
        """Wait until it is done."""
        if not self.is_done:
            from asyncio import get_running_loop

            future: asyncio.Future[None] = get_running_loop().create_future()
            self.when_done(lambda _: None if future.done() else future.set_result(None))
            yield from future.__await__()
        return self
