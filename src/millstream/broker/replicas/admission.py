"""Whether producers may write to a partition now, where a slow consumer can prevent it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millstream.errors import ApiError


class Admission(Protocol):
    """Set at a partition whose topic can hold or reject producers (`broker/backlog`). Appends of
    coordinators, markers of transactions and replication do not ask it."""

    @property
    def holds(self) -> bool:
        """Whether producers wait while it is closed; otherwise they are refused."""
        ...

    def is_open(self) -> bool:
        """Whether records may be appended now."""
        ...

    def refusal(self) -> ApiError:
        """The error for a producer that is not admitted; counts it."""
        ...

    def when_open(self, waiter: Callable[[], None]) -> None:
        """Call back once when it opens, after those that waited before, or when it no longer
        applies."""
        ...

    def forget(self, waiter: Callable[[], None]) -> None:
        """Do not call back."""
        ...

    def held(self, seconds: float) -> None:
        """Count the time that a producer has waited."""
        ...
