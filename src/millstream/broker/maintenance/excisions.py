"""Finds logs with records to excise, and reports what was removed.

The records that a topic must not have are named by its setting `millstream.excised.offsets`; the
cleaner's thread removes them (`storage/excision.py`). Each replica then writes a report, as JSON,
to the compacted topic `__excisions`, where `millstream excise` collects them for its receipt:

    key    replica/<topic id>/<partition>/<broker>           the last look at this log
           removed/<topic id>/<partition>/<broker>/<time>    a look that removed something
    value  {"topic": "orders", "topicId": ..., "partition": 0, "broker": 1, "time": ...,
            "offsets": "5+17-19", "isComplete": true, "removed": "5+17", "removedRecords": 2,
            "logStartOffset": 0, "logEndOffset": 88,
            "segments": [{"baseOffset": 0, "bytesBefore": ..., "bytesAfter": ...,
                          "sha256Before": ..., "sha256After": ...}]}

A report is written when neither the journal nor, if this broker leads the partition, its archive
has the removed records any more.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.config.excised import OffsetRanges
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from millstream.broker.maintenance.cleaning import CleaningThread
    from millstream.broker.peers.topic_writer import Broker
    from millstream.storage.excision import LogExcision
    from millstream.storage.log import Log

logger = logging.getLogger("millstream.excision")

TOPIC = "__excisions"
# Reports list offsets, up to 262,144 characters of them, twice.
SETTINGS = {"cleanup.policy": "compact", "max.message.bytes": "16777216"}
WAITING_MAX = 10_000  # reports that could not be written yet


class _Report(NamedTuple):
    log: Log
    done: LogExcision
    time_ms: int


class Excisions:
    """Belongs to the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._cleaning: CleaningThread | None = None
        self._waiting: deque[_Report] = deque(maxlen=WAITING_MAX)
        self._is_writing = False

    def start(self, cleaning: CleaningThread) -> None:
        self._cleaning = cleaning

    def look(self) -> None:
        """Called every second."""
        if self._cleaning is not None:
            self._cleaning.look_for_excisions()
        if self._waiting and not self._is_writing:
            self._is_writing = True
            self._broker.tasks.start(self._write())

    def excised(self, log: Log, done: LogExcision) -> None:
        self._waiting.append(_Report(log, done, self._broker.clock.now_ms()))

    async def _write(self) -> None:
        try:
            archived = [it for it in self._waiting if self._archive_is_excised(it)]
            ready = await self._broker.tasks.run_blocking(_with_erased_journal, archived)
            if ready:
                from millstream.broker.peers.topic_writer import TopicWriter

                writer = TopicWriter(TOPIC, self._broker, SETTINGS)
                for report in ready:
                    for record in self._records(report):
                        await writer.write([record])
                    self._waiting.remove(report)
        except (MillstreamError, OSError) as error:
            logger.warning("the reports of an excision are written later: %s", error)
        finally:
            self._is_writing = False

    def _archive_is_excised(self, report: _Report) -> bool:
        log, done, _ = report
        partition = self._broker.partitions.get(log.topic, log.partition)
        if partition is None or partition.log is not log or partition.archive is None:
            return True
        setting = log.config.millstream_excised_offsets
        return not partition.is_led_here or partition.archive.is_excised(
            setting, done.wanted.ranges
        )

    def _records(self, report: _Report) -> list[tuple[bytes, bytes]]:
        log, done, time_ms = report
        broker = self._broker.broker_id
        value = json.dumps(_fields(report, broker)).encode()
        name = f"{log.topic_id}/{done.partition}/{broker}"
        records = [(f"replica/{name}".encode(), value)]
        if done.removed:
            records.append((f"removed/{name}/{time_ms}".encode(), value))
        return records


def _with_erased_journal(reports: list[_Report]) -> list[_Report]:
    return [it for it in reports if it.log.directory.journal.is_erased]


def _fields(report: _Report, broker_id: int) -> dict[str, Any]:
    log, done, time_ms = report
    return {
        "topic": done.topic,
        "topicId": str(log.topic_id),
        "partition": done.partition,
        "broker": broker_id,
        "time": time_ms,
        "offsets": str(done.wanted.ranges),
        "isComplete": done.is_complete,
        "removed": str(OffsetRanges.of(done.removed)),
        "removedRecords": len(done.removed),
        "logStartOffset": done.log_start_offset,
        "logEndOffset": done.log_end_offset,
        "segments": [
            {
                "baseOffset": it.base_offset,
                "bytesBefore": it.bytes_before,
                "bytesAfter": it.bytes_after,
                "sha256Before": it.sha256_before,
                "sha256After": it.sha256_after,
            }
            for it in done.segments
        ],
    }
