"""Waiting for changes to show. A controller answers when a change is durable; brokers apply it a
moment later, so that a page that is loaded at once could still show what was before."""

from __future__ import annotations

import time
from collections.abc import Callable

SECONDS_MAX = 5.0
POLL_SECONDS = 0.05


def wait_until_shown(shown: Callable[[], bool], seconds_max: float = SECONDS_MAX) -> bool:
    """Whether it showed in time. The change itself is made in any case."""
    deadline = time.monotonic() + seconds_max
    while not shown():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
