"""Snapshots of aggregates, in a compacted topic beside that of the events.

    key     aggregate id
    value   {"version": 12, "offset": 907, "code": 1, "state": ..., "commands": [[id, first, last]]}
    key     (empty)
    value   {"position": 1042, "code": 1}

The record with the empty key is the last one of a snapshot of a partition: the newest states of all
aggregates together contain every event before `position`. `code` is `Aggregate.version`; if it is
another one, the snapshots are not used, and all events are replayed.

The topic has `millstream.conditional.append=offset`: a writer that does not know the newest
snapshot cannot overwrite it with older states. It is an optimization: nothing is lost without it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any, Generic

from millstream.client.topics import NewTopic, create_topics
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
        self._log = EventLog.beside(log, f"{log.topic}-snapshots")
        settings = {"cleanup.policy": "compact", SETTING: "offset"}
        create_topics(log.cluster, [NewTopic(self._log.topic, log.partition_count, settings)])

    def load(self, partition: int) -> View[State] | None:
        """The view of the newest snapshot; None if there is no usable one."""
        view, _ = self._read(partition)
        return view

    def _read(self, partition: int) -> tuple[View[State] | None, int]:
        """Also the end of the snapshots."""
        log = self._log
        offset, end = log.start_offset(partition), log.end_offset(partition)
        newest: dict[bytes, dict[str, Any]] = {}
        while offset < end:
            read = log.read(partition, offset)
            newest |= {it.key or b"": json.loads(it.value or b"{}") for it in read.records}
            if read.next_offset == offset:
                break
            offset = read.next_offset
        return self._view(newest), end

    def _view(self, newest: dict[bytes, dict[str, Any]]) -> View[State] | None:
        marker = newest.pop(MARKER_KEY, None)
        if marker is None or marker.get("code") != self._aggregate.version:
            return None
        view = View(self._aggregate, position=marker["position"])
        for key, content in newest.items():
            if content.get("code") != self._aggregate.version:
                return None
            current = Current(self._decode(content["state"]), content["version"], content["offset"])
            current.commands.extend(Done(*done) for done in content["commands"])
            view.known[key.decode()] = current
        return view

    def save(self, partition: int, view: View[State]) -> bool:
        """Save what has changed; False if another process has just done so."""
        newest, end = self._read(partition)
        if newest is not None and newest.position >= view.position:
            return False
        ids = view.known if newest is None else view.changed
        contents = [(key.encode(), self._content(view.known[key])) for key in sorted(ids)]
        marker = {"position": view.position, "code": self._aggregate.version}
        try:
            for batch in _batches([*contents, (MARKER_KEY, marker)], end):
                end = self._log.append_batch(partition, encode_batch(batch)) + len(batch)
        except Conflict:
            return False
        view.changed.clear()
        return True

    def _content(self, current: Current[State]) -> dict[str, Any]:
        return {
            "version": current.version,
            "offset": current.offset,
            "code": self._aggregate.version,
            "state": self._encode(current.state),
            "commands": [list(done) for done in current.commands],
        }


def _batches(contents: list[tuple[bytes, dict[str, Any]]], offset: int) -> Iterable[list[Record]]:
    now_ms = int(time.time() * 1000)
    for start in range(0, len(contents), STATES_PER_BATCH):
        yield [
            Record(
                index,
                now_ms,
                key,
                json.dumps(content, separators=(",", ":")).encode(),
                ((OFFSET_HEADER, str(offset + start + index).encode()),),
            )
            for index, (key, content) in enumerate(contents[start : start + STATES_PER_BATCH])
        ]
