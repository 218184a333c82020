"""Whether a target can follow a log: the log must have all that the target lacks, and must still
have what was applied to it.

    another topic      it was deleted and created again
    too few records    some were deleted before they were applied, or the log begins without them
    too few deletes    compaction may have removed tombstones before they were applied
    another log        the log ends before the position, or has other records before it: it was
                       restored from an older copy, or an unclean election of a leader truncated it

Two things show that the log has other records: the leader epoch of the last record that was
applied ends before the position, or the record at its offset has another timestamp. The epoch is
not enough, because a broker that is restored from a copy can repeat it; the timestamp is not
enough, because compaction can have removed the record.
"""

from __future__ import annotations

import time

from millstream.client.cluster import Cluster
from millstream.client.fetching import log_start_offset
from millstream.connect.sinks.positions import UNKNOWN, Place, Position
from millstream.connect.sinks.reading import (
    begins_after,
    end_of_epoch,
    loses_rows,
    stable_end,
    timestamp_at,
)
from millstream.connect.sinks.sink import OutOfStep

_ROWS_AGAIN = (
    "Write all rows to the topic again (if a capture writes it: `millstream capture resnapshot`)"
)


def refuse_other_topic(place: Place, position: Position, topic_id: str) -> None:
    """Raise if the position belongs to a topic of this name that is gone."""
    if position.topic_id != topic_id:
        raise OutOfStep(
            f"topic {place.topic} was deleted and created again: the target has rows of the "
            f"old one (id {position.topic_id}, now {topic_id}). Run with --rebuild to fill it "
            "from the new one"
        )


def refuse_loss(cluster: Cluster, place: Place, position: Position) -> None:
    """Raise if the log does not contain the position."""
    start, end = log_start_offset(cluster, *place), stable_end(cluster, place)
    if start <= position.offset <= end:
        return
    where = (
        f"{place}: the target is at offset {position.offset}, and the log has offsets {start} to "
        f"{end}: "
    )
    if position.offset > end:
        raise OutOfStep(where + _diverged("it was truncated"))
    cure = (
        f"{_ROWS_AGAIN}, run with --rebuild and --allow-partial, and raise retention.ms or "
        "retention.bytes of the topic"
        if loses_rows(cluster, place.topic)
        else "Run with --rebuild"
    )
    raise OutOfStep(f"{where}records were deleted before they were applied. {cure}")


def refuse_divergence(cluster: Cluster, place: Place, position: Position) -> None:
    """Raise if the log has other records before the position than those that were applied."""
    if position.epoch != UNKNOWN:
        end = end_of_epoch(cluster, place, position.epoch)
        if end < position.offset:
            raise OutOfStep(
                f"{place}: the target is at offset {position.offset} of leader epoch "
                f"{position.epoch}, "
                + (f"which ends at offset {end}" if end >= 0 else "which the log does not have")
                + f" now: {_diverged('the log was truncated')}"
            )
    if position.timestamp != UNKNOWN and position.offset > log_start_offset(cluster, *place):
        found = timestamp_at(cluster, place, position.offset - 1)
        if found not in (UNKNOWN, position.timestamp):
            raise OutOfStep(
                f"{place}: the log has another record at offset {position.offset - 1} than the one "
                f"that was applied (its timestamp was {position.timestamp}, now {found}): "
                + _diverged("the log was truncated")
            )


def _diverged(what: str) -> str:
    return (
        f"{what}, or the broker was restored from an older copy, and the target has rows of "
        "records that are gone. Run with --rebuild"
    )


def refuse_partial(cluster: Cluster, place: Place, start: int) -> None:
    """Raise if a target that is filled from the beginning of the log would lack rows."""
    if start > 0 and loses_rows(cluster, place.topic):
        raise OutOfStep(
            f"{place}: the log begins at offset {start}, and a target that is filled from there "
            f"lacks the rows of earlier records. {_ROWS_AGAIN} and run with --allow-partial; do "
            "the latter alone if the target may lack these rows"
        )


def refuse_lost_deletes(
    cluster: Cluster, place: Place, position: Position, written_at: float, kept_seconds: float
) -> None:
    """Raise if compaction may have removed tombstones that were not applied."""
    if position.offset >= stable_end(cluster, place):
        return  # nothing is missing
    if not begins_after(cluster, place, position, time.time() - kept_seconds):
        raise OutOfStep(
            f"{place}: the target was written to {time.time() - written_at:,.0f} seconds ago, and "
            f"the topic keeps tombstones for {kept_seconds:,.0f} seconds (delete.retention.ms): "
            "rows that were deleted meanwhile would remain. Run with --rebuild"
        )
