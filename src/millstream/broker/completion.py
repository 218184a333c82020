"""A one-shot completion with callbacks.

No Future and no Task: callbacks run at once, in the turn of the event loop that completes it, and
in the order in which they were added. A callback that raises is logged and does not affect the
others or the caller: they may be acknowledgements of other clients. Compiled: thousands of these
are made per second.
"""

from __future__ import annotations

from millstream.broker._core import Completion

__all__ = ["Completion"]
