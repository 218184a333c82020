"""How long tests wait for what must come. Only a failing test ever waits this long."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

# A machine may be busy with everything else that is being tested; half a minute was too short.
PATIENCE_SECONDS: Final = 120.0


def wait_until(
    condition: Callable[[], object],
    otherwise: str = "it never came true",
    *,
    seconds_max: float = PATIENCE_SECONDS,
) -> None:
    """Ask again until it holds: much takes effect a moment after it was answered."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)
