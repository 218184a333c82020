"""Finishes, at start-up, a replacement of segments that a crash interrupted.

Compaction replaces neighbouring segments by a new one in steps (`cleaner_segment.py`): it is
written as `<base>.log.cleaned`, which is ignored; renamed to `.swap`, log first, from where on it
is valid; the old ones renamed to `.deleted`, and the snapshots up to there removed; and the suffix
dropped, log last. This module finishes it: `.cleaned` and `.deleted` files are removed, and `.swap`
files replace the segments whose offsets they cover. A missing index is rebuilt later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.storage import names
from millstream.storage.segment import Segment

if TYPE_CHECKING:
    from millstream.storage.log import Log


def finish_replacement(log: Log) -> list[tuple[int, str]]:
    """At start-up: remove leftovers, and finish a replacement that a crash interrupted.

    Returns (offset, suffix) of the files that remain.
    """
    fs = log.directory.fs
    listing = fs.listdir(log.path)
    swaps = [name for name in listing if name.endswith(names.SWAP_SUFFIX)]
    for name in listing:
        if name.endswith((names.DELETED_SUFFIX, names.CLEANED_SUFFIX, ".tmp")):
            fs.unlink(f"{log.path}/{name}")
    if swaps:
        _finish_swap(log, swaps)
        listing = fs.listdir(log.path)
    return [parsed for name in listing if (parsed := names.parse_offset_file(name))]


def _finish_swap(log: Log, swaps: list[str]) -> None:
    fs = log.directory.fs
    parsed = [names.parse_offset_file(name.removesuffix(names.SWAP_SUFFIX)) for name in swaps]
    bases = {found[0] for found in parsed if found and found[1] == names.LOG_SUFFIX}
    for base_offset in bases:
        end_offset = _end_of_swap(log, base_offset)
        for name in fs.listdir(log.path):
            found = names.parse_offset_file(name)
            if found is not None and _is_replaced(*found, base_offset, end_offset):
                fs.unlink(f"{log.path}/{name}")
    # The log last: as long as it has the suffix, recovery after a second crash repeats this.
    for name in sorted(swaps, key=lambda name: names.LOG_SUFFIX in name):
        fs.rename(f"{log.path}/{name}", f"{log.path}/{name.removesuffix(names.SWAP_SUFFIX)}")
    fs.sync_directory(log.path)


def _is_replaced(offset: int, suffix: str, base_offset: int, end_offset: int) -> bool:
    if suffix == names.SNAPSHOT_SUFFIX:
        return offset < end_offset
    is_covered = offset == base_offset or base_offset < offset < end_offset
    return is_covered and suffix in names.SEGMENT_SUFFIXES


def _end_of_swap(log: Log, base_offset: int) -> int:
    """The offset after the last batch of a `.swap` file."""
    segment = Segment(log.directory.handles, log.path, base_offset, suffix=names.SWAP_SUFFIX)
    segment.size = log.directory.fs.file_size(segment.handle.path)
    end_offset = base_offset
    for _, header in segment.walk(0, may_block=True):
        end_offset = header.next_offset
    segment.close()
    return end_offset
