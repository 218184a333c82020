"""A simulated leader's side of replication: fetches of followers, answered or held."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from millstream.coordination.replication.follower import FetchAnswer, FetchPosition
from millstream.coordination.replication.leader import LeaderReplica, diverging_epoch
from millstream.errors import ErrorCode
from millstream.testing.simulation.hosts import FETCH_MAX_BYTES, read
from millstream.testing.simulation.invariants import Key
from millstream.testing.simulation.surroundings import Answers, Broker, Positions, Replica

HOLD_MS = 60


class Held(NamedTuple):
    """A fetch that waits for records."""

    number: int
    follower: int
    positions: Positions
    reply: Callable[[Answers], None]


class Serving:
    def __init__(self, process: Broker) -> None:
        self._process = process
        self._held: dict[int, Held] = {}
        self._count = 0

    def fetch(
        self,
        follower: int,
        broker_epoch: int,
        positions: Positions,
        reply: Callable[[Answers], None],
    ) -> None:
        """A follower fetches."""
        answers: Answers = {}
        for key, position in positions.items():
            answer = self._check(follower, broker_epoch, key, position)
            if answer is not None:
                answers[key] = answer
        if self._process.is_dead:
            return
        self._count += 1
        held = Held(self._count, follower, positions, reply)
        if answers or self._has_records(positions):
            self._answer(held, answers)
            return
        self._held[held.number] = held
        self._process.after(HOLD_MS, "answer a held fetch", lambda: self._release(held.number))

    def appended(self, replica: Replica) -> None:
        """There is something new: answer the fetches that wait for it."""
        for held in list(self._held.values()):
            if replica.key in held.positions:
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

    def _has_records(self, positions: Positions) -> bool:
        replicas = self._process.replicas
        return any(
            key in replicas and replicas[key].log.log_end_offset > position.offset
            for key, position in positions.items()
        )

    def _answer(self, held: Held, answers: Answers) -> None:
        for key, position in held.positions.items():
            if key not in answers:
                answers[key] = self._read(held.follower, key, position)
        held.reply(answers)

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
