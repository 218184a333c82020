"""How many examples property tests draw: all of them in `make test-all`, a part in `make test`."""

from __future__ import annotations

from hypothesis import settings

EXPLORING = "exploring"  # the profile of `make test-all`
PART = 0.4  # of the examples, in all other profiles


def draws(count: int) -> int:
    """How many of `count` examples to draw in this run. At least one."""
    if settings.get_current_profile_name() == EXPLORING:
        return count
    return max(1, round(count * PART))
