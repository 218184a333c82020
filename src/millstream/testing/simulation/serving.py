"""A simulated leader's side of replication: fetches of followers, answered or held, in sessions.

As the broker's, a fetch looks only at partitions that have changed, and a follower that stays at
the end of a log is known to be there until that grows. Now and then a session is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.coordination.replication.fetch_session import SessionRequest
from millstream.coordination.replication.follower import FetchAnswer, FetchPosition
from millstream.coordination.replication.leader import LeaderReplica, diverging_epoch
from millstream.errors import ErrorCode
from millstream.testing.simulation.hosts import FETCH_MAX_BYTES, read
from millstream.testing.simulation.invariants import Key
from millstream.testing.simulation.surroundings import (
    Answers,
    Broker,
    FetchResponse,
    Positions,
    Replica,
)

HOLD_MS = 60
LOST_ONE_IN = 200


@dataclass
class Session:
    """The partitions that a follower fetches."""

    id: int
    follower: int
    broker_epoch: int
    epoch: int = 0
    positions: Positions = field(default_factory=dict)
    rests: dict[Key, object] = field(default_factory=dict)  # not looked at while this is the state
    at_end: set[Key] = field(default_factory=set)
    answered_ms: int = 0
    is_held: bool = False


class Held(NamedTuple):
    """A fetch that waits for records."""

    number: int
    session: Session
    looked_at: tuple[Key, ...]
    reply: Callable[[FetchResponse], None]


class Serving:
    def __init__(self, process: Broker) -> None:
        self._process = process
        self._held: dict[int, Held] = {}
        self._sessions: dict[int, Session] = {}
        self._count = 0

    def fetch(
        self,
        follower: int,
        broker_epoch: int,
        request: SessionRequest[Key],
        reply: Callable[[FetchResponse], None],
    ) -> None:
        """A follower fetches."""
        self._count += 1
        session = self._open(follower, broker_epoch, request)
        if isinstance(session, ErrorCode):
            reply(FetchResponse(error=int(session)))
            return
        answers: Answers = {}
        looked_at = self._changed(session)
        for key in looked_at:
            answer = self._check(follower, broker_epoch, key, session.positions[key])
            if answer is not None:
                answers[key] = answer
        if self._process.is_dead:
            return
        held = Held(self._count, session, looked_at, reply)
        if answers or self._has_records(session, looked_at):
            self._answer(held, answers)
            return
        self._held[held.number] = held
        session.is_held = True
        self._process.after(HOLD_MS, "answer a held fetch", lambda: self._release(held.number))

    def _open(
        self, follower: int, broker_epoch: int, request: SessionRequest[Key]
    ) -> Session | ErrorCode:
        session_id = request.session_id
        if request.session_epoch == 0:
            self._sessions.pop(session_id, None)
            session_id = self._count
            self._sessions[session_id] = Session(session_id, follower, broker_epoch)
        elif self._count % LOST_ONE_IN == 0:
            self._sessions.pop(session_id, None)
        found = self._sessions.get(session_id)
        if found is None:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if found.epoch != request.session_epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        found.epoch += 1
        if found.broker_epoch != broker_epoch:
            found.broker_epoch = broker_epoch
            found.rests.clear()
        found.positions.update(request.positions)
        for key in (*request.positions, *request.forgotten):
            found.rests.pop(key, None)
        for key in request.forgotten:
            found.positions.pop(key, None)
            found.at_end.discard(key)
        return found

    def _changed(self, session: Session) -> tuple[Key, ...]:
        rests = session.rests
        return tuple(
            key
            for key in session.positions
            if key not in rests or rests[key] != self._state(session.follower, key)
        )

    def _state(self, follower: int, key: Key) -> object:
        """What an answer to a follower at the end contains; None: it has to be looked at."""
        replica = self._process.replicas.get(key)
        leader = replica.leader if replica is not None else None
        if replica is None or leader is None or follower not in leader.isr:
            return None
        end, start = replica.log.log_end_offset, replica.log.log_start_offset
        return leader.epoch, leader.high_watermark, end, start

    def appended(self, replica: Replica) -> None:
        """There is something new: answer the fetches that wait for it."""
        key, leader = replica.key, replica.leader
        for session in self._sessions.values():
            if key in session.at_end:
                session.at_end.discard(key)
                until_ms = self._process.now_ms if session.is_held else session.answered_ms
                if leader is not None:
                    leader.stayed_at_end(session.follower, session.broker_epoch, until_ms)
        for held in list(self._held.values()):
            if key in held.session.positions:
                self._release(held.number)

    def _release(self, number: int) -> None:
        held = self._held.pop(number, None)
        if held is not None:
            self._answer(held, {})

    def _check(
        self, follower: int, broker_epoch: int, key: Key, position: FetchPosition
    ) -> FetchAnswer | None:
        """An error or a divergence; None: the follower agrees, and what it has counts."""
        process = self._process
        replica = process.replicas.get(key)
        leader = replica.leader if replica is not None else None
        if replica is None or leader is None:
            return FetchAnswer(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        error = process.cluster.parts.check_epoch(leader.epoch, position.leader_epoch)
        if error is not None:
            return FetchAnswer(int(error))
        log = replica.log
        if position.offset < log.log_start_offset or (
            position.offset > log.log_end_offset and position.last_fetched_epoch < 0
        ):
            return FetchAnswer(int(ErrorCode.OFFSET_OUT_OF_RANGE))
        diverging = diverging_epoch(
            log.epochs, log.log_end_offset, position.last_fetched_epoch, position.offset
        )
        if diverging is not None:
            return FetchAnswer(diverging=diverging)
        if leader.fetched(follower, broker_epoch, position.offset, process.now_ms):
            process.advanced(replica)
        if leader.candidates:
            process.propose()
        return None

    def _has_records(self, session: Session, keys: tuple[Key, ...]) -> bool:
        replicas = self._process.replicas
        return any(
            key in replicas and replicas[key].log.log_end_offset > session.positions[key].offset
            for key in keys
        )

    def _answer(self, held: Held, answers: Answers) -> None:
        session = held.session
        session.is_held = False
        session.answered_ms = self._process.now_ms
        for key in dict.fromkeys((*held.looked_at, *self._changed(session))):
            if key in session.positions:
                if key not in answers:
                    answers[key] = self._read(session.follower, key, session.positions[key])
                self._looked_at(session, key, answers[key])
        held.reply(FetchResponse(session.id, 0, answers))

    def _looked_at(self, session: Session, key: Key, answer: FetchAnswer) -> None:
        session.rests.pop(key, None)
        session.at_end.discard(key)
        replica = self._process.replicas.get(key)
        if replica is None or answer.error or answer.diverging is not None:
            return
        if session.positions[key].offset == replica.log.log_end_offset:
            session.at_end.add(key)
            state = self._state(session.follower, key)
            if state is not None:
                session.rests[key] = state

    def _read(self, follower: int, key: Key, position: FetchPosition) -> FetchAnswer:
        replica = self._process.replicas.get(key)
        leader: LeaderReplica | None = replica.leader if replica is not None else None
        if replica is None or leader is None:
            return FetchAnswer(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
        error = self._process.cluster.parts.check_epoch(leader.epoch, position.leader_epoch)
        if error is not None:
            return FetchAnswer(int(error))
        leader.answered(follower, self._process.now_ms)
        log = replica.log
        if position.offset < log.log_start_offset:
            return FetchAnswer(int(ErrorCode.OFFSET_OUT_OF_RANGE))
        records = read(log, position.offset, FETCH_MAX_BYTES)
        return FetchAnswer(
            high_watermark=leader.high_watermark,
            log_start_offset=log.log_start_offset,
            records=records,
        )

    def offsets(self, key: Key, epoch: int) -> tuple[int, int] | None:
        """Where the log of a partition that is led here, in that epoch, starts and ends."""
        replica = self._process.replicas.get(key)
        leader = replica.leader if replica is not None else None
        if replica is None or leader is None:
            return None
        if self._process.cluster.parts.check_epoch(leader.epoch, epoch) is not None:
            return None
        return replica.log.log_start_offset, replica.log.log_end_offset


def check_epoch(epoch: int, asked: int) -> ErrorCode | None:
    """Whether a fetch in an epoch is for this leader."""
    if asked < epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if asked > epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return None
