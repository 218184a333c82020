"""Snapshots of aggregates, in a compacted topic beside that of the events.

    key     aggregate id
    value   {"version": 12, "offset": 907, "code": 1, "topic_id": "f1c3...", "state": ...,
             "commands": [[id, first, last]]}
    key     (empty)
    value   {"position": 1042, "code": 1, "topic_id": "f1c3..."}

The record with the empty key is the last one of a snapshot of a partition: the newest states of all
aggregates together contain every event before `position`. `code` is `Aggregate.version`, and
`topic_id` that of the topic of events. If one of them is another one, or missing, as in snapshots
of earlier versions of Millstream, the snapshots are not used, and all events are replayed. The next
snapshot replaces them, and has tombstones for aggregates that do not exist any more.

The topic has `millstream.conditional.append=offset`: a writer that does not know the newest
snapshot cannot overwrite it with older states. It is an optimization: nothing is lost without it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Set
from typing import Any, Generic

from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ConfigError
from millstream.events.aggregate import Aggregate, State
from millstream.events.log import SETTING, Conflict, EventLog
from millstream.events.view import Current, Done, View
from millstream.records.record import Record, encode_batch

OFFSET_HEADER = "millstream-offset"
STATES_PER_BATCH = 500
MARKER_KEY = b""


def _as_it_is(state: Any) -> Any:
    return state


class Snapshots(Generic[State]):
    """Reads and writes the snapshots of an event topic. `encode` and `decode` convert a state to
    what JSON can express, and back."""

    def __init__(
        self,
        log: EventLog,
        aggregate: Aggregate[State, Any],
        *,
        encode: Callable[[State], Any] = _as_it_is,
        decode: Callable[[Any], State] = _as_it_is,
    ) -> None:
        self._aggregate = aggregate
        self._encode, self._decode = encode, decode
        self._events = log
        self._log = EventLog.beside(log, f"{log.topic}-snapshots")
        settings = {"cleanup.policy": "compact", SETTING: "offset"}
        create_topics(log.cluster, [NewTopic(self._log.topic, log.partition_count, settings)])
        if self._log.partition_count != log.partition_count:
            raise ConfigError(
                f"topic {self._log.topic} has {self._log.partition_count} partitions, and "
                f"{log.topic} has {log.partition_count}: if {log.topic} was created again, delete "
                f"{self._log.topic}; if it got more partitions, aggregates are in others now, "
                "without their events: copy these to a new topic"
            )

    @property
    def topic(self) -> str:
        """The topic of the snapshots."""
        return self._log.topic

    def load(self, partition: int) -> View[State] | None:
        """The view of the newest snapshot; None if there is no usable one."""
        return self._read(partition)[0]

    def _read(self, partition: int) -> tuple[View[State] | None, Set[bytes], int]:
        """Also the keys of all states, of this or another log, and the end of the snapshots."""
        log = self._log
        offset, end = log.start_offset(partition), log.end_offset(partition)
        newest: dict[bytes, dict[str, Any]] = {}
        while offset < end:
            read = log.read(partition, offset)
            for record in read.records:
                if record.value is None:
                    newest.pop(record.key or b"", None)
                else:
                    newest[record.key or b""] = json.loads(record.value)
            if read.next_offset == offset:
                break
            offset = read.next_offset
        marker = newest.pop(MARKER_KEY, None)
        return self._view(marker, newest), newest.keys(), end

    def _view(
        self, marker: dict[str, Any] | None, states: dict[bytes, dict[str, Any]]
    ) -> View[State] | None:
        if marker is None or not self._is_ours(marker):
            return None
        view = View(self._aggregate, position=marker["position"])
        for key, content in states.items():
            if not self._is_ours(content):
                return None
            current = Current(self._decode(content["state"]), content["version"], content["offset"])
            current.commands.extend(Done(*done) for done in content["commands"])
            view.known[key.decode()] = current
        return view

    def _is_ours(self, content: dict[str, Any]) -> bool:
        """Whether it was written by this version of the code, from this log."""
        return self._stamp().items() <= content.items()

    def _stamp(self) -> dict[str, Any]:
        return {"code": self._aggregate.version, "topic_id": str(self._events.topic_id)}

    def save(self, partition: int, view: View[State]) -> bool:
        """Save what has changed; False if another process has just done so. Raises `LogChanged` if
        the topic of events was deleted."""
        newest, keys, end = self._read(partition)
        if newest is not None and newest.position >= view.position:
            return False
        self._events.check_unchanged()  # now: a later snapshot of another log moves the end
        contents: list[tuple[bytes, dict[str, Any] | None]] = []
        ids = view.changed
        if newest is None:
            ids = set(view.known)
            gone = keys - {it.encode() for it in ids}
            contents += [(key, None) for key in sorted(gone)]
        contents += [(key.encode(), self._content(view.known[key])) for key in sorted(ids)]
        contents.append((MARKER_KEY, {"position": view.position, **self._stamp()}))
        try:
            for batch in _batches(contents, end):
                end = self._log.append_batch(partition, encode_batch(batch)) + len(batch)
        except Conflict:
            return False
        view.changed.clear()
        return True

    def _content(self, current: Current[State]) -> dict[str, Any]:
        return {
            "version": current.version,
            "offset": current.offset,
            **self._stamp(),
            "state": self._encode(current.state),
            "commands": [list(done) for done in current.commands],
        }


def _batches(
    contents: list[tuple[bytes, dict[str, Any] | None]], offset: int
) -> Iterable[list[Record]]:
    now_ms = int(time.time() * 1000)
    for start in range(0, len(contents), STATES_PER_BATCH):
        yield [
            Record(
                index,
                now_ms,
                key,
                None if content is None else json.dumps(content, separators=(",", ":")).encode(),
                ((OFFSET_HEADER, str(offset + start + index).encode()),),
            )
            for index, (key, content) in enumerate(contents[start : start + STATES_PER_BATCH])
        ]
