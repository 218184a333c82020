"""A consumer group under fire: seeded runs of clients that come, go, crash and repeat themselves.

The network loses requests and answers and delivers requests twice; topics come, grow and go; the
shard moves to another broker in the middle of it, with nothing but its (sometimes compacted) log.
While it runs, these must hold:

    SingleOwner       no partition is consumed by two clients that the group counts as members
    GrowingEpochs     group epoch, assignment epoch and each member's epoch never fall
    ReplayedState     a shard made from the log is the shard that wrote it

and once the faults stop and time passes:

    Convergence       the group is stable; every partition of a subscribed topic is consumed once
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from millstream.config.groups import GroupConfig
from millstream.coordination.groups.consumer import ConsumerGroup
from millstream.coordination.groups.consumer_messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    Partitions,
)
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.consumer_harness import FakeTopics, ShardDriver

SEEDS = int(os.environ.get("MILLSTREAM_SIMULATION_SEEDS", "40"))
STEPS = 300
HEARTBEAT_MS = 5_000
SUBSCRIPTIONS = (("a",), ("a", "b"), ("b", "c"), ("a", "b", "c", "new-0", "new-1"))
REGEXES = ("a|b", "new-.*", ".*")

FENCING = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID)


@dataclass(eq=False)
class Client:
    """Consumes what it owns. Gives up before it takes on, and says so in its next heartbeat."""

    member_id: str
    names: tuple[str, ...] | None
    regex: str | None
    instance_id: str | None = None
    epoch: int = 0
    owned: dict[UUID, frozenset[int]] = field(default_factory=dict)
    target: Partitions = field(default_factory=dict)
    alive: bool = True
    fenced: bool = True  # not a member, whatever it believes
    says_all: bool = True  # its next heartbeat is a full one

    def request(self) -> ConsumerHeartbeat:
        full = self.says_all or self.epoch == 0
        return ConsumerHeartbeat(
            "g",
            self.member_id,
            self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=20_000 if full else -1,
            topic_names=self.names if full else None,
            topic_regex=self.regex if full else None,
            owned=dict(self.owned),
        )

    def told(self, response: ConsumerHeartbeatResponse) -> None:
        self.epoch = response.member_epoch
        self.says_all = False
        if response.assignment is not None:
            self.target = response.assignment

    def lost_an_answer(self) -> None:
        """It takes on nothing more, for that might be another's by now, until it has asked again.

        (Its heartbeat said what it owned; the coordinator may have acted on that.)
        """
        self.says_all = True
        self.revoke()
        self.target = dict(self.owned)

    def refused(self, code: ErrorCode) -> None:
        if code in FENCING:
            self.drop_everything()

    def drop_everything(self) -> None:
        self.epoch, self.owned, self.target, self.says_all = 0, {}, {}, True

    def revoke(self) -> None:
        kept = {t: held & self.target.get(t, frozenset()) for t, held in self.owned.items()}
        self.owned = {t: held for t, held in kept.items() if held}

    def take_on(self) -> None:
        self.revoke()
        self.owned = dict(self.target)

    @property
    def partitions(self) -> set[tuple[UUID, int]]:
        return {(t, partition) for t, held in self.owned.items() for partition in held}


class Simulation:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.topics = FakeTopics(a=4, b=3, c=5)
        interval_ms = self.chance.choice((0, 1_000, 4_000))
        self.driver = ShardDriver(
            self.topics, config=GroupConfig(consumer_assignment_interval_ms=interval_ms)
        )
        self.clients: list[Client] = []
        self.created = 0
        self.epochs: dict[str, int] = {}

    # --- what happens --------------------------------------------------------------------------

    def run(self) -> None:
        actions = {
            self.heartbeat: 60,
            self.consume: 30,
            self.start_client: 4,
            self.stop_client: 2,
            self.crash_client: 1,
            self.bounce_static: 2,
            self.resubscribe: 2,
            self.change_topics: 2,
            self.move_shard: 1,
            self.pass_time: 6,
        }
        for _ in range(STEPS):
            self.chance.choices(list(actions), list(actions.values()))[0]()
            self.check()
        self.converge()

    def start_client(self) -> None:
        if len(self.clients) >= 7:
            return
        self.created += 1
        regex = self.chance.choice((None, None, None, *REGEXES))
        names = self.chance.choice(SUBSCRIPTIONS) if regex is None else None
        instance_id = f"i{self.created}" if self.chance.random() < 0.3 else None
        self.clients.append(Client(f"m{self.created:03}", names, regex, instance_id))

    def heartbeat(self) -> None:
        client = self.pick()
        if client is None:
            return
        request = client.request()
        if self.chance.random() < 0.05:
            return  # the request is lost; the client tries again later
        answer = self.deliver(request)
        if self.chance.random() < 0.1:
            self.deliver(request)  # it came twice,
            client.lost_an_answer()  # and its answers were lost with the connection
        elif self.chance.random() < 0.1:
            client.lost_an_answer()
        elif isinstance(answer, ErrorCode):
            client.refused(answer)
        else:
            client.told(answer)

    def deliver(self, request: ConsumerHeartbeat) -> ConsumerHeartbeatResponse | ErrorCode:
        try:
            answer = self.driver.heartbeat(request)
        except ApiError as error:
            return error.code
        if request.member_epoch == 0:
            for client in self.clients:
                # It joined with empty hands: what it still holds on to, it dropped before.
                if client.member_id == request.member_id and client.epoch == 0:
                    client.fenced = False
        return answer

    def consume(self) -> None:
        client = self.pick()
        if client is not None:
            self.chance.choice((client.revoke, client.take_on))()

    def stop_client(self) -> None:
        client = self.pick()
        if client is not None:
            self.clients.remove(client)
            self.leave(client, -1)

    def leave(self, client: Client, epoch: int) -> None:
        client.drop_everything()
        self.deliver(ConsumerHeartbeat("g", client.member_id, epoch, client.instance_id))

    def crash_client(self) -> None:
        client = self.pick()
        if client is not None:
            client.alive = False

    def bounce_static(self) -> None:
        """A static client restarts: the same instance, a new member id."""
        client = self.pick()
        if client is not None and client.instance_id is not None:
            self.leave(client, -2)
            self.created += 1
            client.member_id, client.fenced = f"m{self.created:03}", True

    def resubscribe(self) -> None:
        client = self.pick()
        if client is not None:
            client.says_all = True
            if client.regex is None:
                client.names = self.chance.choice((*SUBSCRIPTIONS, ()))
            else:
                client.regex = self.chance.choice((*REGEXES, ""))

    def change_topics(self) -> None:
        names = sorted(self.topics.names())
        roll = self.chance.random()
        if roll < 0.5:
            name = self.chance.choice(names)
            topic_id = self.topics.topic_id(name)
            assert topic_id is not None
            self.topics.grow(name, (self.topics.partition_count(topic_id) or 0) + 1)
        elif roll < 0.8 and "new-2" not in names:
            self.topics.create(f"new-{sum(name.startswith('new-') for name in names)}", 2)
        elif "b" in names:
            self.topics.delete("b")
        else:
            self.topics.create("b", 3)
        self.driver.apply(self.driver.shard.topics_changed(self.topics, self.driver.now_ms))

    def move_shard(self) -> None:
        before = _state(self.driver)
        self.driver.reload(compacted=self.chance.random() < 0.5)
        assert _state(self.driver) == before, "ReplayedState"

    def pass_time(self) -> None:
        self.driver.advance(self.chance.choice((100, 1_000, HEARTBEAT_MS)))

    def pick(self) -> Client | None:
        alive = [client for client in self.clients if client.alive]
        return self.chance.choice(alive) if alive else None

    # --- what must hold ------------------------------------------------------------------------

    def check(self) -> None:
        group = self.driver.shard.groups.get("g")
        members = group.members if isinstance(group, ConsumerGroup) else {}
        for client in self.clients:
            if client.member_id not in members:
                client.fenced = True
        counted = [client for client in self.clients if not client.fenced]
        consumed = Counter(p for client in counted for p in client.partitions)
        assert all(count == 1 for count in consumed.values()), f"SingleOwner: {consumed}"
        if isinstance(group, ConsumerGroup):
            self.check_epochs(group)

    def check_epochs(self, group: ConsumerGroup) -> None:
        epochs = {"group": group.epoch, "assignment": group.assignment_epoch}
        epochs |= {m: member.epoch for m, member in group.members.items() if member.epoch > 0}
        for name, epoch in epochs.items():
            assert epoch >= self.epochs.get(name, 0), f"GrowingEpochs: {name} fell to {epoch}"
        for gone in self.epochs.keys() - group.members.keys() - {"group", "assignment"}:
            del self.epochs[gone]
        self.epochs |= epochs

    def converge(self) -> None:
        self.clients = [client for client in self.clients if client.alive]
        if not self.clients:
            self.start_client()
        for _ in range(40):
            for client in self.clients:
                answer = self.deliver(client.request())
                if isinstance(answer, ErrorCode):
                    client.refused(answer)
                else:
                    client.told(answer)
                client.take_on()
                self.check()
            self.driver.advance(HEARTBEAT_MS)
        group = self.driver.group()
        consumed = Counter(p for client in self.clients for p in client.partitions)
        assert group.state_name == "Stable", f"Convergence: {group.state_name}"
        assert consumed == Counter(self.wanted(group)), "Convergence: not all consumed once"

    def wanted(self, group: ConsumerGroup) -> set[tuple[UUID, int]]:
        names = {name for client in self.clients for name in client.names or ()}
        for client in self.clients:
            if client.regex:
                names |= group.resolved[client.regex].topics
        ids = {self.topics.topic_id(name) for name in names}
        return {(t, partition) for t, partition in self.topics.all_partitions() if t in ids}


def _state(driver: ShardDriver) -> object:
    """All that the records of the group say."""
    group = driver.shard.groups.get("g")
    if not isinstance(group, ConsumerGroup):
        return None
    return (
        group.epoch,
        group.metadata_hash,
        group.assignment_epoch,
        group.assignment_timestamp_ms,
        group.members,
        group.target,
        group.resolved,
        group.static_members,
        group.subscriptions,
        group._owners,
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_consumer_group_keeps_its_promises_under_random_faults(seed: int) -> None:
    """One seed again: pytest -k "random_faults[SEED]"; more: MILLSTREAM_SIMULATION_SEEDS=1000."""
    try:
        Simulation(seed).run()
    except BaseException as error:
        error.add_note(f"simulation seed {seed}")
        raise
