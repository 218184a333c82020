"""Decides what a leader archives next, and what its archive may forget. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

from millstream.archive.channel import FILES_MAX
from millstream.archive.manifest import NO_TIMESTAMP, ArchivedFile, Manifest
from millstream.config.topic import TopicConfig

# Of segments in one file. One segment may be larger.
FILE_BYTES_MAX = 128 * 1024 * 1024
# A file expires as a whole, so that it holds only a small part of what is retained.
FILES_RETAINED_MIN = 10


class SegmentLike(Protocol):
    """The part of a segment that is planned with."""

    @property
    def base_offset(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def max_timestamp(self) -> int | None:
        """None: not known."""


class Epochs(Protocol):
    """The leader epochs of a log."""

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]: ...


class Upload(NamedTuple):
    """Neighbouring segments that become one file: the offsets [first_offset, end_offset)."""

    first_offset: int
    end_offset: int
    segments: tuple[int, ...]  # indexes


def next_upload(
    segments: Sequence[SegmentLike],
    config: TopicConfig,
    *,
    archived: int,
    log_start: int,
    limit: int,
) -> Upload | None:
    """The closed segments to archive next, below the `limit`: what is not stable or not flushed
    may still change."""
    first = max(archived, log_start)
    size_max = FILE_BYTES_MAX
    if config.delete and config.retention_bytes >= 0:
        size_max = min(size_max, config.retention_bytes // FILES_RETAINED_MIN)
    chosen: list[int] = []
    size = end = 0
    for number, (segment, following) in enumerate(pairwise(segments)):
        if following.base_offset <= first:
            continue
        if following.base_offset > limit:
            break
        if chosen and (
            size + segment.size > size_max
            or len(chosen) == FILES_MAX
            or _is_apart(segments[chosen[0]], segment, config)
        ):
            break
        chosen.append(number)
        size += segment.size
        end = following.base_offset
    return Upload(first, end, tuple(chosen)) if chosen else None


def _is_apart(one: SegmentLike, other: SegmentLike, config: TopicConfig) -> bool:
    """Whether they expire at quite different times."""
    if not config.delete or config.retention_ms < 0:
        return False
    earlier, later = one.max_timestamp, other.max_timestamp
    if earlier is None or later is None:
        return False
    return abs(later - earlier) > config.retention_ms // FILES_RETAINED_MIN


def find_divergence(
    manifest: Manifest, epochs: Epochs, *, log_start: int, log_end: int
) -> str | None:
    """What is wrong if the archive contains records that this log has lost, or has others in their
    place, as after an unclean election."""
    for file in manifest.files:
        if file.end_offset <= log_start:
            continue
        epoch, end = epochs.end_offset_for(file.last_epoch, log_end)
        is_known = file.last_epoch < 0 or (epoch == file.last_epoch and end >= file.end_offset)
        if file.end_offset > log_end or not is_known:
            return (
                f"the archive of {manifest.topic}-{manifest.partition} and its log differ: "
                f"{file.name} was archived in leader epoch {file.last_epoch}, and the log, which "
                f"ends at {log_end}, does not have these records. Nothing more is archived. Read "
                "the archive, or move the topic's directory in the archive away to start again"
            )
    return None


def expired(
    manifest: Manifest, config: TopicConfig, *, unarchived_bytes: int, now_ms: int
) -> Sequence[ArchivedFile]:
    """The oldest files, which retention.ms or retention.bytes no longer cover."""
    if not config.delete:
        return ()
    files, count = manifest.files, 0
    if config.retention_ms >= 0:
        for number, file in enumerate(files, 1):
            newest_ms = file.newest_ms
            if newest_ms == NO_TIMESTAMP:
                continue  # it goes with the next one
            if now_ms - newest_ms <= config.retention_ms:
                break
            count = number
    if config.retention_bytes >= 0:
        total = sum(file.segment_bytes for file in files[count:]) + unarchived_bytes
        excess = total - config.retention_bytes
        while count < len(files) and excess >= files[count].segment_bytes:
            excess -= files[count].segment_bytes
            count += 1
    return files[:count]
