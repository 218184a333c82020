"""`Capture`: the changes of a PostgreSQL database as records in topics, exactly once.

    capture = Capture(
        name="shop",
        database="postgresql://capture@localhost/shop",
        tables=["public.*"],
        broker="localhost:9092",
    )
    capture.run()                    # until stop(), from another thread or a signal handler

`run` retries after lost connections, and continues from the stored position. It raises
`CaptureError` for what a retry cannot cure; the message names the cure.
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Self

from millstream.client.producing import BatchRefused
from millstream.connect.capture import metrics
from millstream.connect.capture.output import Owner, TransactionLost
from millstream.connect.capture.progress import Progress
from millstream.connect.capture.refusals import refused
from millstream.connect.capture.session import LOST, Session, TablesChanged
from millstream.connect.capture.settings import CaptureSettings
from millstream.errors import ApiError

BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 10.0

log = logging.getLogger("millstream.capture")


class Capture:
    """See the module; the settings are those of `CaptureSettings`."""

    def __init__(self, **settings: Any) -> None:
        self.settings = CaptureSettings(**settings)
        self.progress = Progress()
        self._stopping = threading.Event()
        self._owner = Owner()

    @classmethod
    def of(cls, settings: CaptureSettings) -> Self:
        """A capture with settings that are parsed already."""
        capture = cls.__new__(cls)
        capture.settings = settings
        capture.progress = Progress()
        capture._stopping = threading.Event()
        capture._owner = Owner()
        return capture

    def stop(self) -> None:
        """End `run` soon; what was committed stays."""
        self._stopping.set()

    def run(self) -> None:
        """Capture until `stop`."""
        if not self.settings.metrics:
            self._run()
            return
        server = metrics.serve(self.settings, self.progress)
        try:
            self._run()
        finally:
            server.stop()

    def _run(self) -> None:
        backoff = BACKOFF_SECONDS
        while not self._stopping.is_set():
            commits = self.progress.commits
            try:
                self._run_once()
            except TablesChanged as change:
                log.info("%s", change)
                continue
            except BatchRefused as error:
                raise refused(self.settings, self.progress, error) from error
            except (*LOST, ApiError) as error:
                if not self._can_retry(error):
                    raise
                if self.progress.commits > commits:
                    backoff = BACKOFF_SECONDS
                log.warning("%s; trying again in %.1f s", error, backoff)
                self.progress.retrying(error)
                self._stopping.wait(backoff)
                backoff = min(2 * backoff, BACKOFF_SECONDS_MAX)

    def _run_once(self) -> None:
        Session(self.settings, self.progress, self._stopping, self._owner).run()

    def _can_retry(self, error: Exception) -> bool:
        """Errors before the copy or the stream begins are for the user: an address may be wrong."""
        if isinstance(error, ApiError) and not error.code.retriable:
            return False
        return isinstance(error, TransactionLost) or self.progress.has_begun
