"""A model of ZooKeeper as the cluster uses it: an ordered log of commits, sessions, an election.

    commit    a batch of records on top of an expected version, under a nonce; the controller's
              also on an expected controller epoch
    read      the commits after a version; sets a watch
    ping      extends a session, unless it has ended
    elect     makes a session the controller if there is none

Answers are values. Whether an answer arrives is up to the network: a client that does not get it
does not know whether its commit was applied. Watches fire once and are set again by the next read,
so several commits arrive as one notice.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import MetadataRecord
from millstream.testing.simulation.invariants import Invariants
from millstream.testing.simulation.world import World

SESSION_MS = 1_000


class Answer(Enum):
    """Outcomes of a request."""

    DONE = "done"
    CONFLICT = "conflict"  # another commit came first
    FENCED = "fenced"  # another controller was elected
    EXPIRED = "expired"  # the session has ended
    UNKNOWN = "unknown"  # no answer came


class Entry(NamedTuple):
    """One commit."""

    version: int
    nonce: int
    records: tuple[MetadataRecord, ...]


@dataclass
class Session:
    """A broker's session, and its ephemeral node."""

    id: int
    broker_id: int
    incarnation_id: uuid.UUID
    expires_ms: int
    notify: Callable[[], None]
    has_watch: bool = False


@dataclass
class ZooKeeper:
    """See the module."""

    world: World
    invariants: Invariants
    image: ClusterImage = field(default_factory=ClusterImage)
    entries: list[Entry] = field(default_factory=list)
    sessions: dict[int, Session] = field(default_factory=dict)
    controller: int | None = None  # its session
    controller_epoch: int = 0
    _session_count: int = 0

    # Requests

    def open_session(
        self, broker_id: int, incarnation_id: uuid.UUID, notify: Callable[[], None]
    ) -> int:
        """A session with the broker's ephemeral node; that of a former process is deleted."""
        for session in list(self.sessions.values()):
            if session.broker_id == broker_id:
                self.expire(session.id)
        self._session_count += 1
        self.sessions[self._session_count] = Session(
            self._session_count,
            broker_id,
            incarnation_id,
            self.world.now_ms + SESSION_MS,
            notify,
        )
        self._members_changed()
        return self._session_count

    def ping(self, session_id: int) -> Answer:
        session = self.sessions.get(session_id)
        if session is None:
            return Answer.EXPIRED
        session.expires_ms = self.world.now_ms + SESSION_MS
        return Answer.DONE

    def read(self, session_id: int, version: int) -> list[Entry] | Answer:
        """The commits after a version."""
        session = self.sessions.get(session_id)
        if session is None:
            return Answer.EXPIRED
        session.has_watch = True
        return self.entries[version + 1 :]

    def commit(
        self,
        expected: int,
        nonce: int,
        records: Sequence[MetadataRecord],
        controller_epoch: int | None = None,
    ) -> Answer:
        """Of any session: clients send requests of a session that has ended in the next one."""
        if controller_epoch is not None and not self.is_controller_epoch(controller_epoch):
            return Answer.FENCED
        if expected != self.image.version:
            return Answer.CONFLICT
        if controller_epoch is not None:
            self.invariants.controller_committed(controller_epoch, self.controller_epoch)
        self.apply(nonce, records)
        return Answer.DONE

    def is_controller_epoch(self, epoch: int) -> bool:
        return epoch == self.controller_epoch

    def elect(self, session_id: int) -> int | None:
        """The controller's epoch if this session is the controller, or becomes it; else None."""
        if self.controller == session_id and session_id in self.sessions:
            return self.controller_epoch  # the answer to its election was lost
        if session_id not in self.sessions or self.controller in self.sessions:
            return None
        self.controller = session_id
        self.controller_epoch += 1
        return self.controller_epoch

    def live(self) -> dict[int, uuid.UUID]:
        """The incarnations of the brokers with sessions."""
        return {it.broker_id: it.incarnation_id for it in self.sessions.values()}

    # Inside

    def apply(self, nonce: int, records: Sequence[MetadataRecord]) -> None:
        """Append a commit and fire the watches."""
        before = self.image
        entry = Entry(before.version + 1, nonce, tuple(records))
        self.image = before.apply(entry.records, entry.version)
        self.entries.append(entry)
        self.invariants.metadata_changed(before, self.image)
        for session in self.sessions.values():
            if session.has_watch:
                session.has_watch = False
                session.notify()

    def expire_sessions(self) -> None:
        """End the sessions that were not extended in time."""
        for session in list(self.sessions.values()):
            if session.expires_ms < self.world.now_ms:
                self.expire(session.id)

    def expire(self, session_id: int) -> None:
        """End a session: its ephemeral nodes are gone."""
        del self.sessions[session_id]
        self._members_changed()

    def _members_changed(self) -> None:
        """The watch on the ephemeral nodes: everybody looks again."""
        for session in self.sessions.values():
            session.notify()
