"""What a group has not read, and what retention has taken, or is about to take, of that.

    log start       committed                    log end
    |  read         |  unread: the lag           |

    committed       log start                    log end
    |  lost         |  unread, still there       |        retention was faster than the group

Nothing of this needs a record of its own. The committed offset lives in `__consumer_offsets`, the
log start offset in the log's checkpoint and in the name of its first segment, and both survive a
restart: their difference is the loss, until the group's next commit moves past it. (The log start
also moves when somebody calls DeleteRecords; those records are as lost to the group.)
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.records.batch import NO_TIMESTAMP

UNLIMITED = -1


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far behind a group is in one partition, in records (offsets)."""

    group_id: str
    topic: str
    partition: int
    committed: int
    log_start: int
    log_end: int

    @property
    def lag(self) -> int:
        """As Kafka's tools count: everything past the commit, still there or not."""
        return max(self.log_end - self.committed, 0)

    @property
    def lost(self) -> int:
        """Records that were deleted before the group had read them."""
        return max(min(self.log_start, self.log_end) - self.committed, 0)


@dataclass(frozen=True, slots=True)
class OldestUnread:
    """The segment with the oldest unread record: retention deletes whole segments, oldest first."""

    newest_timestamp_ms: int  # in that segment; -1 where it is not known
    later_bytes: int  # of all segments after it


@dataclass(frozen=True, slots=True)
class Retention:
    """A topic's limits; -1 for none."""

    max_age_ms: int = UNLIMITED
    max_bytes: int = UNLIMITED


def retention_used(oldest: OldestUnread, retention: Retention, now_ms: int) -> float:
    """How much of its retention the oldest unread record has used up: at 1 it may go any moment.

    A segment goes when its newest record is older than the time limit, or when the segments after
    it alone are as large as the size limit.
    """
    used = 0.0
    if retention.max_age_ms > 0 and oldest.newest_timestamp_ms != NO_TIMESTAMP:
        used = (now_ms - oldest.newest_timestamp_ms) / retention.max_age_ms
    if retention.max_bytes > 0:
        used = max(used, oldest.later_bytes / retention.max_bytes)
    return max(used, 0.0)
