"""Appends that wait until they are flushed here, or on every in-sync replica."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from millstream.broker.completion import Completion
from millstream.errors import ApiError
from millstream.records.batch import NO_TIMESTAMP

ACKS_ALL = -1
ACKS_NONE = 0
ACKS_LEADER = 1


class PendingAppend(Completion):
    """A written append that completes once it is as durable as its producer requested."""

    # On the class, since most appends never need to change them.
    log_append_time_ms = NO_TIMESTAMP  # only where message.timestamp.type says so
    bytes_before = 0  # what the leader had appended before this
    waits_for_all = False  # whether it is done at the high watermark, or when flushed here
    error: ApiError | None = None

    def __init__(self, first_offset: int, next_offset: int) -> None:
        self.first_offset = first_offset
        self.next_offset = next_offset

    def __repr__(self) -> str:
        return f"<PendingAppend {self.first_offset}..{self.next_offset}>"

    def fail(self, error: ApiError) -> None:
        """Complete with an error: it is not as durable as requested."""
        self.error = error
        self.finish()

    def __await__(self) -> Generator[Any, None, PendingAppend]:
        """Wait until done. Raises the `ApiError` it failed with."""
        yield from super().__await__()
        if self.error is not None:
            raise self.error
        return self
