"""Classic and modern members in one group: seeded runs through upgrades and downgrades.

Members of both protocols start, stop and crash, topics grow, and the shard moves to another broker.
So the group turns from classic to consumer and back many times. While it runs:

    SingleOwner    no partition is consumed by two clients that the group counts as members

and once it is left alone:

    Convergence    every partition is consumed by exactly one client, whatever the group's kind
"""

from __future__ import annotations

import itertools
import os
import random
from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from millstream.config.groups import GroupConfig
from millstream.coordination.group_records import ClassicProtocol
from millstream.coordination.groups.classic import ClassicGroup
from millstream.coordination.groups.classic_messages import (
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeavingMember,
    SyncRequest,
    SyncResponse,
)
from millstream.coordination.groups.consumer import ConsumerGroup
from millstream.coordination.groups.consumer_messages import ConsumerHeartbeat
from millstream.coordination.groups.embedded_protocol import (
    EmbeddedAssignment,
    EmbeddedSubscription,
    NamedPartitions,
    by_topic_id,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.consumer_harness import FakeTopics, ShardDriver

SEEDS = int(os.environ.get("MILLSTREAM_SIMULATION_SEEDS", "40"))
STEPS = 300
TOPICS = ("a", "b")
SUBSCRIPTION = encode_subscription(EmbeddedSubscription(TOPICS), 1)

_tokens = itertools.count()


@dataclass(eq=False)
class Client:
    """What both kinds of clients have; `act` is one turn of the client's own loop."""

    driver: ShardDriver
    name: str
    member_id: str = ""
    owned: dict[UUID, frozenset[int]] = field(default_factory=dict)
    alive: bool = True
    is_member: bool = False  # since it last joined, with empty hands; a zombie is none

    def act(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        raise NotImplementedError

    @property
    def partitions(self) -> set[tuple[UUID, int]]:
        return {(t, partition) for t, held in self.owned.items() for partition in held}


@dataclass(eq=False)
class ModernClient(Client):
    epoch: int = 0

    def __post_init__(self) -> None:
        self.member_id = self.name

    def act(self) -> None:
        beat = ConsumerHeartbeat("g", self.member_id, self.epoch, owned=dict(self.owned))
        if self.epoch == 0:
            self.is_member = True
            beat = ConsumerHeartbeat(
                "g", self.member_id, 0, rebalance_timeout_ms=20_000, topic_names=TOPICS, owned={}
            )
        try:
            answer = self.driver.heartbeat(beat)
        except ApiError:
            self.epoch, self.owned = 0, {}
            return
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self.owned = dict(answer.assignment)

    def leave(self) -> None:
        self.owned = {}
        self.driver.heartbeat(ConsumerHeartbeat("g", self.member_id, -1))


@dataclass(eq=False)
class ClassicClient(Client):
    """An eager consumer: it drops everything before it joins anew."""

    generation: int = -1
    phase: str = "outside"  # then joining, syncing, stable
    token: object = None
    patience: int = 0
    dealt: int | None = None  # how many partitions it dealt out, if it led

    def act(self) -> None:
        try:
            getattr(self, f"_when_{self.phase}")()
        except ApiError as error:
            self._start_over(error.code)

    def _start_over(self, code: ErrorCode) -> None:
        self.owned, self.phase = {}, "outside"
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND):
            self.member_id = ""

    def _when_outside(self) -> None:
        self.owned, self.token, self.patience = {}, next(_tokens), 20
        self.is_member = True
        request = JoinRequest(
            group_id="g",
            member_id=self.member_id,
            group_instance_id=None,
            client_id=self.name,
            client_host="/127.0.0.1",
            protocol_type="consumer",
            protocols=(ClassicProtocol("range", SUBSCRIPTION),),
            session_timeout_ms=30_000,
            rebalance_timeout_ms=20_000,
            api_version=9,
        )
        self.phase = "joining"
        driver = self.driver
        driver.apply(driver.shard.join_group(request, self.token, driver.now_ms))

    def _answer(self) -> object:
        """The answer, once it is there; a client does not wait for one for ever."""
        answer = self.driver.answers.pop(self.token, None)
        self.patience -= 1
        if answer is None and self.patience == 0:
            self._start_over(ErrorCode.REQUEST_TIMED_OUT)
        return answer

    def _when_joining(self) -> None:
        answer = self._answer()
        if not isinstance(answer, JoinResponse):
            return
        if answer.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id, self.phase = answer.member_id, "outside"
        elif answer.error is not ErrorCode.NONE:
            self._start_over(answer.error)
        else:
            self.member_id, self.generation = answer.member_id, answer.generation
            self.phase, self.token, self.patience = "syncing", next(_tokens), 20
            self._send_sync(answer)

    def _send_sync(self, joined: JoinResponse) -> None:
        ids = [member.member_id for member in joined.members]
        leads = joined.leader == self.member_id
        self.dealt = len(self.driver.topics.all_partitions()) if leads else None
        assignments = self._shares(ids) if leads else ()
        request = SyncRequest(
            "g", self.member_id, None, self.generation, "consumer", "range", assignments
        )
        driver = self.driver
        driver.apply(driver.shard.sync_group(request, self.token, driver.now_ms))

    def _shares(self, ids: list[str]) -> tuple[tuple[str, bytes], ...]:
        """The leader deals out the partitions like cards."""
        hands: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in ids}
        dealt = itertools.cycle(ids)
        for topic_id, partition in sorted(self.driver.topics.all_partitions()):
            name = self.driver.topics.topic_name(topic_id) or ""
            hands[next(dealt)].setdefault(name, []).append(partition)
        return tuple(
            (member_id, encode_assignment(EmbeddedAssignment(_named(hand)), 1))
            for member_id, hand in hands.items()
        )

    def _when_syncing(self) -> None:
        answer = self._answer()
        if not isinstance(answer, SyncResponse):
            return
        if answer.error is not ErrorCode.NONE:
            self._start_over(answer.error)
            return
        assigned = decode_assignment(answer.assignment).assigned_partitions
        self.owned = dict(by_topic_id(assigned, self.driver.topics))
        self.phase = "stable"

    def _when_stable(self) -> None:
        request = HeartbeatRequest("g", self.member_id, None, self.generation)
        code = self.driver.apply(self.driver.shard.heartbeat(request, self.driver.now_ms))
        # It is a leader's business to watch the topics.
        sees_new = self.dealt not in (None, len(self.driver.topics.all_partitions()))
        if code is not ErrorCode.NONE or sees_new:
            self._start_over(code)

    def leave(self) -> None:
        self.owned = {}
        request = LeaveRequest("g", (LeavingMember(self.member_id, None),))
        self.driver.apply(self.driver.shard.leave_group(request, self.driver.now_ms))


def _named(hand: dict[str, list[int]]) -> tuple[NamedPartitions, ...]:
    return tuple(NamedPartitions(name, tuple(held)) for name, held in hand.items())


class Simulation:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.driver = ShardDriver(
            FakeTopics(a=3, b=4),
            config=GroupConfig(consumer_assignment_interval_ms=self.chance.choice((0, 1_000))),
        )
        self.clients: list[Client] = []
        self.created = 0
        self.kinds: set[type] = set()

    def run(self) -> None:
        actions = {
            self.let_one_act: 80,
            self.start_client: 6,
            self.stop_client: 5,
            self.crash_client: 1,
            self.grow_topic: 1,
            self.move_shard: 1,
            self.pass_time: 8,
        }
        for _ in range(STEPS):
            self.chance.choices(list(actions), list(actions.values()))[0]()
            self.driver.advance(0)
            self.check()
        self.converge()

    def start_client(self) -> None:
        if len(self.clients) < 5:
            self.created += 1
            kind = self.chance.choice((ModernClient, ClassicClient))
            self.clients.append(kind(self.driver, f"c{self.created}"))

    def pick(self) -> Client | None:
        alive = [client for client in self.clients if client.alive]
        return self.chance.choice(alive) if alive else None

    def let_one_act(self) -> None:
        client = self.pick()
        if client is not None:
            client.act()

    def stop_client(self) -> None:
        client = self.pick()
        if client is not None:
            self.clients.remove(client)
            try:
                client.leave()
            except ApiError as error:
                refusals = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND)
                if error.code not in refusals:
                    raise

    def crash_client(self) -> None:
        client = self.pick()
        if client is not None:
            client.alive = False

    def grow_topic(self) -> None:
        topics = self.driver.topics
        topic_id = topics.topic_id("a")
        assert topic_id is not None
        topics.grow("a", (topics.partition_count(topic_id) or 0) + 1)

    def move_shard(self) -> None:
        self.driver.reload(compacted=self.chance.random() < 0.5)

    def pass_time(self) -> None:
        self.driver.advance(self.chance.choice((100, 1_000, 3_000)))

    def check(self) -> None:
        group = self.driver.shard.groups.get("g")
        self.kinds.add(type(group))
        members_now = group.members if isinstance(group, ConsumerGroup | ClassicGroup) else ()
        for client in self.clients:
            if client.member_id not in members_now:
                client.is_member = False
        members = [client for client in self.clients if client.is_member]
        consumed = Counter(p for client in members for p in client.partitions)
        assert all(count == 1 for count in consumed.values()), f"SingleOwner: {consumed}"

    def converge(self) -> None:
        self.clients = [client for client in self.clients if client.alive]
        if not self.clients:
            self.start_client()
        for _ in range(60):
            for client in self.clients:
                client.act()
                self.driver.advance(0)
                self.check()
            self.driver.advance(2_000)
        consumed = Counter(p for client in self.clients for p in client.partitions)
        expected = Counter(self.driver.topics.all_partitions())
        group = self.driver.shard.groups["g"]
        assert consumed == expected, f"Convergence: {group.kind} {group.state_name}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_mixed_group_keeps_its_promises_through_migrations(seed: int) -> None:
    """One seed again: pytest -k "migrations[SEED]"; more: MILLSTREAM_SIMULATION_SEEDS=1000."""
    try:
        Simulation(seed).run()
    except BaseException as error:
        error.add_note(f"simulation seed {seed}")
        raise


def test_simulation_sees_both_kinds_of_groups() -> None:
    kinds: set[type] = set()
    for seed in range(5):
        simulation = Simulation(seed)
        simulation.run()
        kinds |= simulation.kinds
    assert kinds >= {ClassicGroup, ConsumerGroup}
