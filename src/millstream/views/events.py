"""Changes of a view as server-sent events.

    id: 42.1c5f09aa
    event: changes
    data: {"stamp": {...}, "changes": [{"before": null, "after": {"user": "ada", "spent": 5}}]}

There is one event for each batch that changed the view, in the order of the batches. A client that
connects again sends the id of the last event that it has seen, and gets what came behind it. The id
has the number of the stamp and a checksum of its offsets, because a pipeline that starts over also
counts from the beginning. If the changes behind an event are no longer kept, or a batch has more
than 10,000, an event `reset` comes instead. The client then reads the view, at least at the stamp
of that event, and goes on from there.
"""

from __future__ import annotations

import json
import re
import zlib

from millstream.connect.tables.rows import plain
from millstream.errors import TooMuch, ViewError
from millstream.views.reading import ROWS_MAX, Snapshot, View
from millstream.views.spec import Stamp

_CHANGES_MAX = ROWS_MAX  # of a batch, and of the events of one call
_ID = re.compile(r"(\d{1,18})\.([0-9a-f]{8})", re.ASCII)


class Follower:
    """The events for one client."""

    def __init__(self, name: str, after: str | None = None) -> None:
        """`after` is the id of the last event that the client has seen; without it, changes begin
        behind the first snapshot. Raises `ViewError` if it is no id."""
        self._name = name
        self._last: str | None = after
        if after is not None and not _ID.fullmatch(after):
            raise ViewError(f"{after!r} is no id of an event")

    def next_events(self, snapshot: Snapshot) -> list[str]:
        """What a snapshot has behind the last event, as text; some of it, if it is much. A client
        that named no event gets the stamp at which its changes begin."""
        view = snapshot[self._name]
        newest = view.stamp_at(view.number)
        assert newest is not None
        newest_id = _id(view.number, newest)
        if self._last == newest_id:
            return []
        last, self._last = self._last, newest_id
        if last is None:
            return [_event("begin", newest_id, newest)]
        number = int(last.partition(".")[0])
        seen = view.stamp_at(number) if number < view.number else None
        if seen is None or _id(number, seen) != last:
            return [_event("reset", newest_id, newest)]
        try:
            events, self._last = _changes(view, number, last)
        except ViewError:
            return [_event("reset", newest_id, newest)]
        return events


def _changes(view: View, after: int, last: str) -> tuple[list[str], str]:
    """The events of batches behind a stamp, and the id of the last batch that they have. Raises
    `ViewError` if there are none because a batch is not kept, or has too many changes."""
    events: list[str] = []
    left = _CHANGES_MAX
    for number in range(after + 1, view.number + 1):
        stamp = view.stamp_at(number)
        if stamp is None:
            raise ViewError(f"stamp {number} is not kept")
        try:
            found = view.changes(number, rows_max=left)
        except TooMuch:
            if left == _CHANGES_MAX:
                raise
            break
        left -= len(found)
        last = _id(number, stamp)
        if found:
            changes = [{"before": before, "after": after} for before, after in found]
            events.append(_event("changes", last, stamp, changes=changes))
    return events, last


def _event(kind: str, event_id: str, stamp: Stamp, **more: object) -> str:
    data = json.dumps(plain({"stamp": stamp.as_json(), **more}), ensure_ascii=False, default=str)
    return f"id: {event_id}\nevent: {kind}\ndata: {data}\n\n"


def _id(number: int, stamp: Stamp) -> str:
    document = stamp.as_json()
    text = json.dumps([document["offsets"], document["topic_ids"]], sort_keys=True)
    return f"{number}.{zlib.crc32(text.encode()):08x}"
