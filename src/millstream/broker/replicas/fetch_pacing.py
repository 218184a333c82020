"""Pacing of fetches by clients that stop fetching when they are given records too fast.

librdkafka fetches ahead of its application. When 100,000 records of a partition are queued
(`queued.min.messages`), it does not fetch that partition for one second
(`fetch.queue.backoff.ms`), however soon the queue is empty. An application that consumes a million
records a second then has records for a tenth of each second: the faster the broker answers, the
less it gets. So the broker holds back the answers to such a client, a little, until it fetches
without pauses:

    run       fetches of a partition, one soon after the other
    pause     the time from an answer to the next fetch. About a second at the end of a run: the
              queue of the client was full, for otherwise it fetches at once
    rate      in bytes per second. After such a pause, a fraction of the mean rate of the run: half
              of it if the run was short, because then it was far too high, more if it was long.
              During a run it grows slowly, to find out whether the application can take more

Only bulk reads are paced, and an answer is held back for at most `HOLD_SECONDS_MAX`. A client that
consumes less than that permits does not lose anything by its pauses.

There is no I/O here, and no clock: times are parameters, in seconds.
"""

from __future__ import annotations

from typing import TypeAlias

from millstream.protocol.produce import TopicKey

BULK_BYTES_MIN = 64 * 1024  # smaller answers are not counted and not held back
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.9, 1.5  # librdkafka's second, and a busy machine
RUN_GAP_SECONDS_MAX = 0.5  # a longer gap between two fetches begins another run
RUN_ANSWERS_MIN = 4  # a pause after fewer answers has other reasons
LONG_RUN_SECONDS = 2.0
SHORT_RUN_FRACTION, LONG_RUN_FRACTION = 0.5, 0.85
GROWTH_PER_SECOND = 0.05
HOLD_SECONDS_MIN, HOLD_SECONDS_MAX = 0.001, 0.1
CREDIT_SECONDS = 0.02  # late answers may be made up for by that much
PARTITIONS_MAX = 1000  # of one client


PartitionKey: TypeAlias = tuple[TopicKey, int]


class _Pace:
    """The fetches of one partition by one client."""

    __slots__ = ("answered_at", "rate", "ready_at", "run_answers", "run_bytes", "run_start")

    def __init__(self, now: float) -> None:
        self.rate = 0.0  # 0: not paced
        self.ready_at = now  # when the next answer may be given
        self.answered_at = now
        self.begin_run(now)

    def begin_run(self, now: float) -> None:
        self.run_start = now
        self.run_answers = 0
        self.run_bytes = 0

    def fetched(self, now: float) -> None:
        """The next fetch has arrived."""
        pause = now - self.answered_at
        if pause <= RUN_GAP_SECONDS_MAX:
            return
        if PAUSE_SECONDS_MIN <= pause <= PAUSE_SECONDS_MAX and self.run_answers >= RUN_ANSWERS_MIN:
            seconds = max(self.answered_at - self.run_start, HOLD_SECONDS_MIN)
            is_long = seconds >= LONG_RUN_SECONDS
            fraction = LONG_RUN_FRACTION if is_long else SHORT_RUN_FRACTION
            self.rate = fraction * self.run_bytes / seconds
        self.begin_run(now)

    def answered(self, size_bytes: int, now: float) -> None:
        self.run_answers += 1
        self.run_bytes += size_bytes
        if self.rate:
            elapsed = min(now - self.answered_at, RUN_GAP_SECONDS_MAX)
            self.rate *= 1 + GROWTH_PER_SECOND * elapsed
            self.ready_at = max(self.ready_at, now - CREDIT_SECONDS) + size_bytes / self.rate
        self.answered_at = now


class FetchPacer:
    """The pace of one client's bulk reads."""

    def __init__(self) -> None:
        self._paces: dict[PartitionKey, _Pace] = {}  # the one answered last is the last

    def fetched(self, key: PartitionKey, now: float) -> None:
        """A fetch of the partition has arrived."""
        pace = self._paces.get(key)
        if pace is not None:
            pace.fetched(now)

    def hold_seconds(self, key: PartitionKey, now: float) -> float:
        """For how long the records of the partition should be held back; 0: not at all."""
        pace = self._paces.get(key)
        if pace is None or not pace.rate:
            return 0.0
        seconds = min(pace.ready_at, pace.answered_at + HOLD_SECONDS_MAX) - now
        return seconds if seconds >= HOLD_SECONDS_MIN else 0.0

    def answered(self, key: PartitionKey, size_bytes: int, now: float) -> None:
        """The partition is answered with that many bytes of records."""
        if size_bytes < BULK_BYTES_MIN:
            return
        pace = self._paces.pop(key, None) or _Pace(now)
        self._paces[key] = pace
        pace.answered(size_bytes, now)
        if len(self._paces) > PARTITIONS_MAX:
            del self._paces[next(iter(self._paces))]
