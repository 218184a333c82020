"""What a running capture has done so far, for progress bars and logs."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.connect.capture.position import CaptureState
    from millstream.connect.capture.selection import Selection
    from millstream.connect.capture.source import Slot
    from millstream.connect.capture.stream import ChangeStream

log = logging.getLogger("millstream.capture")


@dataclass
class Progress:
    """Written by the capture's thread, read by any other."""

    phase: str = "connecting"  # connecting, copying, streaming, retrying
    waiting: str = ""  # what it waits for
    error: str = ""  # why it is retrying
    rows_copied: int = 0
    records: int = 0  # written from the stream
    transactions: int = 0  # of the database
    commits: int = 0  # of Kafka
    retries: int = 0  # sessions that ended with an error
    written_at: float = 0.0  # when a position was last written, since 1970
    lsn: int = 0
    committed_at_us: int = 0  # commit time of the last transaction that is written
    state: CaptureState | None = None
    slot: Slot | None = None
    has_begun: bool = False  # a session has reached the database and the broker
    table_problems: dict[str, str] = field(default_factory=dict)  # by schema.name, with the cure
    started_at: float = field(default_factory=time.monotonic)
    _streamed: int = 0  # transactions of this session

    def begin_copy(self, state: CaptureState) -> None:
        self.phase, self.state, self.waiting, self.error = "copying", state, "", ""
        self.has_begun = True

    def copied(self, state: CaptureState, rows: int) -> None:
        self.state = state
        self.rows_copied += rows
        self.commits += 1
        self.written_at = time.time()

    def begin_stream(self, state: CaptureState, lsn: int) -> None:
        """`lsn`: of the stored position, from which the stream continues."""
        self.phase, self.state, self.waiting, self.error = "streaming", state, "", ""
        self.has_begun = True
        self.lsn = lsn
        self._streamed = 0

    def streamed(
        self, records: int, stream: ChangeStream, state: CaptureState | None = None
    ) -> None:
        """Records were written; with the state, they are committed."""
        self.records += records
        self.transactions += stream.transactions - self._streamed
        self._streamed = stream.transactions
        if state is not None:
            self.commits += 1
            self.written_at = time.time()
            self.lsn = stream.position.lsn
            self.committed_at_us = stream.commit_time_us
            self.state = state

    def selected(self, selection: Selection) -> None:
        """The tables were looked up; each new problem is logged once."""
        problems = selection.problems
        for name, problem in problems.items():
            if self.table_problems.get(name) != problem:
                log.warning("%s: %s", name, problem)
        self.table_problems = problems

    def retrying(self, error: Exception) -> None:
        self.phase, self.error = "retrying", str(error)
        self.retries += 1
