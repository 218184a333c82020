"""A simulated follower's side of replication: one fetch at a time to each leader, in a session.

All answers are delivered, also those that come after the next fetch was sent: the machine has to
recognize what it did not ask for.
"""

from __future__ import annotations

from millstream.coordination.replication.fetch_session import FollowerSession
from millstream.coordination.replication.follower import (
    Append,
    AskOffsets,
    FetchPosition,
    Retry,
    Truncate,
    Wipe,
)
from millstream.testing.simulation.invariants import Key
from millstream.testing.simulation.surroundings import Broker, FetchResponse, Positions, Replica

ANSWER_MS = 200
BACKOFF_MS = 30


class Fetching:
    def __init__(self, process: Broker) -> None:
        self._process = process
        self._under_way: dict[int, int] = {}  # leader -> number of the fetch
        self._sessions: dict[int, FollowerSession[Key]] = {}
        self._count = 0

    def roles_changed(self) -> None:
        leaders = {it.leader_id for it in self._process.replicas.values() if it.follower}
        for leader_id in sorted(leaders):
            self.wake(leader_id)

    def wake(self, leader_id: int) -> None:
        """Fetch from a leader, unless a fetch is under way or there is nothing to ask for."""
        process = self._process
        if leader_id in self._under_way or process.member.broker_epoch < 0:
            return
        positions: Positions = {}
        for replica in process.replicas.values():
            if replica.follower is not None and replica.leader_id == leader_id:
                position = replica.follower.next_fetch()
                if position is not None:
                    positions[replica.key] = position
        session = self._sessions.setdefault(leader_id, FollowerSession())
        for key in session.keys() - positions.keys():
            session.leave_out(key)
        for key, position in positions.items():
            session.fetch(key, position)
        if positions:
            self._send(leader_id, positions)

    def _send(self, leader_id: int, positions: Positions) -> None:
        process, network = self._process, self._process.cluster.network
        self._count += 1
        number = self._under_way[leader_id] = self._count
        target = process.cluster.processes.get(leader_id)
        broker_epoch = process.member.broker_epoch
        request = self._sessions[leader_id].next_request()

        def reply(response: FetchResponse) -> None:
            network.send(
                leader_id,
                process.id,
                "fetched",
                lambda: self._answered(leader_id, number, positions, response),
                process,
            )

        if target is not None:
            network.send(
                process.id,
                leader_id,
                "fetch",
                lambda: target.serving.fetch(process.id, broker_epoch, request, reply),
                target,
            )
        process.after(ANSWER_MS, "fetch: no answer", lambda: self._lost(leader_id, number))

    def _lost(self, leader_id: int, number: int) -> None:
        if self._under_way.get(leader_id) == number:
            self._sessions[leader_id].lost()
            self._over(leader_id, number)

    def _over(self, leader_id: int, number: int) -> None:
        if self._under_way.get(leader_id) == number:
            del self._under_way[leader_id]
            self.wake(leader_id)

    def _answered(
        self, leader_id: int, number: int, positions: Positions, response: FetchResponse
    ) -> None:
        if self._under_way.get(leader_id) == number:
            self._sessions[leader_id].answered(response.session_id, response.error)
        must_wait = False
        for key, answer in response.answers.items():
            replica = self._process.replicas.get(key)
            if replica is not None and replica.follower is not None:
                effect = replica.follower.answered(positions[key], answer)
                must_wait |= isinstance(effect, Retry)
                self._carry_out(replica, positions[key], effect)
        if must_wait:
            self._process.after(BACKOFF_MS, "back off", lambda: self._over(leader_id, number))
        else:
            self._over(leader_id, number)

    def _carry_out(self, replica: Replica, asked: FetchPosition, effect: object) -> None:
        process, follower = self._process, replica.follower
        assert follower is not None
        match effect:
            case Append(records):
                process.disk.append_fetched(
                    replica.key,
                    replica.log,
                    records,
                    offset=asked.offset,
                    epoch=follower.leader_epoch,
                )
                follower.appended(replica.log.log_end_offset)
                process.request_flush(replica)
            case Truncate(offset, is_below):
                process.disk.truncate(
                    replica.key, replica.log, offset, is_below_high_watermark=is_below
                )
                follower.truncated(replica.log.log_end_offset)
                replica.high_watermark = min(replica.high_watermark, follower.high_watermark)
            case Wipe(start):
                process.disk.wipe(replica.key, replica.log, start)
                follower.wiped(start)
                replica.high_watermark = start
            case AskOffsets():
                self._ask_offsets(replica, asked)
        if follower.leader_start > follower.start:
            start = min(follower.leader_start, follower.high_watermark)
            replica.log.delete_records_before(start)
            follower.start_moved(replica.log.log_start_offset)
        if follower.high_watermark > replica.high_watermark:
            replica.high_watermark = follower.high_watermark
            process.cluster.invariants.follower_high_watermark(
                process.id, replica.key, follower.high_watermark
            )

    def _ask_offsets(self, replica: Replica, asked: FetchPosition) -> None:
        """Ask the leader for its start and end."""
        process, network, leader_id = (
            self._process,
            self._process.cluster.network,
            replica.leader_id,
        )
        target = process.cluster.processes.get(leader_id)
        if target is None:
            return

        def answered(offsets: tuple[int, int] | None) -> None:
            if offsets is not None and replica.follower is not None and not replica.log.is_deleted:
                self._carry_out(replica, asked, replica.follower.offsets(asked, *offsets))
                self.wake(leader_id)

        def arrive() -> None:
            offsets = target.serving.offsets(replica.key, asked.leader_epoch)
            network.send(leader_id, process.id, "offsets", lambda: answered(offsets), process)

        network.send(process.id, leader_id, "ask for offsets", arrive, target)
