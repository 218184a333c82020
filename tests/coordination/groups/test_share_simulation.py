"""A share group under fire: seeded runs of members and administrators, and of a runtime that dies.

The network loses requests and answers, delivers heartbeats twice and late; topics come, grow and
go; the persister refuses; the coordinator dies between any two records of a batch (what was
appended is what was flushed) and between asking the persister and writing down what came of it.
While it runs, these must hold:

    InitializedFirst   nobody is given a partition that the persister has no state of
    SubscribedOnly     nobody is given a partition of a topic that it is not subscribed to
    NothingForgotten   what the persister has state of is known to the group, to be deleted with it
    KeptPosition       a position is begun anew only after somebody began to delete it
    GrowingEpochs      group epoch and assignment epoch never fall while the group lives
    ReplayedState      a shard made from the log is the shard that wrote it

and once the faults stop and time passes:

    Convergence        every partition of a subscribed topic is given to somebody, everybody who is
                       subscribed to something is given something, loads are even, and nothing of
                       that is left initializing
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from millstream.config.groups import GroupConfig
from millstream.coordination.groups import share_offsets
from millstream.coordination.groups.assignors import Assignment
from millstream.coordination.groups.share import ShareGroup
from millstream.coordination.groups.share_messages import (
    Initialization,
    ShareHeartbeat,
    ShareHeartbeatResponse,
)
from millstream.coordination.result import Result
from millstream.coordination.share_state import SharePartitionKey
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.consumer_harness import FakeTopics
from tests.coordination.groups.share_harness import ShareDriver

SEEDS = int(os.environ.get("MILLSTREAM_SIMULATION_SEEDS", "40"))
STEPS = 300
HEARTBEAT_MS = 5_000
SUBSCRIPTIONS = (("a",), ("a", "b"), ("b", "c"), ("a", "b", "c"))
REJOINING = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)


class Crash(Exception):
    """The coordinator died in the middle of it."""


class MortalDriver(ShareDriver):
    """A runtime that may die: `fuse` records from now, counted down as they are appended."""

    fuse: int | None = None

    def apply(self, result: Result[Any]) -> Any:
        if self.fuse is None or len(result.records) <= self.fuse:
            if self.fuse is not None:
                self.fuse -= len(result.records)
            return super().apply(result)
        # One batch: it is in the log as a whole or not at all.
        if self.fuse % 2:
            super().apply(result)
        raise Crash


@dataclass(eq=False)
class Client:
    member_id: str
    topics: tuple[str, ...]
    epoch: int = 0
    assigned: Assignment = field(default_factory=dict)
    alive: bool = True
    says_all: bool = True

    def request(self) -> ShareHeartbeat:
        full = self.says_all or self.epoch == 0
        names = self.topics if full else None
        return ShareHeartbeat("g", self.member_id, self.epoch, topic_names=names)

    def told(self, response: ShareHeartbeatResponse) -> None:
        self.epoch, self.says_all = response.member_epoch, False
        if response.assignment is not None:
            self.assigned = response.assignment

    def refused(self, code: ErrorCode) -> None:
        if code in REJOINING:
            self.epoch, self.assigned, self.says_all = 0, {}, True


class Simulation:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.topics = FakeTopics(a=4, b=3, c=5)
        interval_ms = self.chance.choice((0, 1_000, 4_000))
        self.driver = MortalDriver(
            self.topics, config=GroupConfig(share_assignment_interval_ms=interval_ms)
        )
        self.clients: list[Client] = []
        self.late: list[ShareHeartbeat] = []  # requests that are still on their way
        self.underway: list[Initialization] = []  # the persister has yet to be asked
        self.created = 0
        self.epochs = (0, 0)
        self.position = 0
        self.doomed: set[SharePartitionKey] = set()  # somebody began to delete them

    # --- what happens --------------------------------------------------------------------------

    def run(self) -> None:
        actions = {
            self.heartbeat: 60,
            self.persist: 20,
            self.deliver_late: 5,
            self.start_client: 4,
            self.stop_client: 2,
            self.crash_client: 1,
            self.resubscribe: 2,
            self.change_topics: 2,
            self.administer: 3,
            self.crash: 3,
            self.move_shard: 1,
            self.pass_time: 6,
        }
        for _ in range(STEPS):
            action = self.chance.choices(list(actions), list(actions.values()))[0]
            try:
                action()
            except Crash:
                self.restart()
            self.check()
        self.converge()

    def start_client(self) -> None:
        if len(self.clients) < 7:
            self.created += 1
            topics = self.chance.choice(SUBSCRIPTIONS)
            self.clients.append(Client(f"m{self.created:03}", topics))

    def heartbeat(self) -> None:
        client = self.pick()
        if client is None:
            return
        request = client.request()
        roll = self.chance.random()
        if roll < 0.05:
            return  # lost
        answer = self.deliver(request)
        if roll < 0.1:
            self.late.append(request)  # it comes a second time, some time
        if roll < 0.2:
            client.says_all = True  # the answer is lost
        elif isinstance(answer, ErrorCode):
            client.refused(answer)
        else:
            client.told(answer)

    def deliver(self, request: ShareHeartbeat) -> ShareHeartbeatResponse | ErrorCode:
        try:
            answer = self.driver.share_heartbeat(request)
        except ApiError as error:
            return error.code
        if answer.initialization is not None:
            self.underway.append(answer.initialization)
        return answer

    def deliver_late(self) -> None:
        if self.late:
            self.deliver(self.late.pop(self.chance.randrange(len(self.late))))

    def persist(self) -> None:
        """The runtime does an initialization: first what is known already, then the persister."""
        if not self.underway:
            return
        wanted = self.underway.pop(self.chance.randrange(len(self.underway)))
        self.initialize(wanted, refused=self.chance.random() < 0.1)

    def initialize(self, wanted: Initialization, *, refused: bool) -> None:
        groups, driver = self.driver.groups, self.driver
        left = groups.still_to_initialize(wanted)
        partitions = list(left.start_offsets)
        if not partitions:
            return
        if refused:
            driver.apply(groups.initialization_failed("g", partitions))
        else:
            self.write_states(left)
            driver.apply(groups.state_initialized("g", partitions, driver.now_ms))

    def write_states(self, wanted: Initialization) -> None:
        for key in wanted.share_partitions():
            has_moved = self.driver.states.get(key, (0, -1))[1] != -1
            assert not has_moved or key in self.doomed, f"KeptPosition: {key}"
        self.driver.persist(wanted)
        self.doomed.difference_update(wanted.share_partitions())

    def consume(self) -> None:
        """Leaders move the positions of what was given to members."""
        for client in self.clients:
            for topic_id, partitions in client.assigned.items():
                for partition in partitions:
                    key = SharePartitionKey("g", topic_id, partition)
                    if key in self.driver.states:
                        self.position += 1
                        self.driver.states[key] = (self.driver.states[key][0], self.position)

    def stop_client(self) -> None:
        client = self.pick()
        if client is not None:
            self.clients.remove(client)
            self.deliver(ShareHeartbeat("g", client.member_id, -1))

    def crash_client(self) -> None:
        client = self.pick()
        if client is not None:
            client.alive = False

    def resubscribe(self) -> None:
        client = self.pick()
        if client is not None:
            client.says_all, client.topics = True, self.chance.choice(SUBSCRIPTIONS)

    def change_topics(self) -> None:
        name = self.chance.choice(("a", "b", "c"))
        topic_id = self.topics.topic_id(name)
        if topic_id is None:
            self.topics.create(name, 2)
        elif self.chance.random() < 0.6:
            self.topics.grow(name, (self.topics.partition_count(topic_id) or 0) + 1)
        else:
            self.topics.delete(name)
            for key in [key for key in self.driver.states if key.topic_id == topic_id]:
                del self.driver.states[key]
        driver = self.driver
        driver.apply(driver.shard.topics_changed(self.topics, driver.now_ms))
        if topic_id is not None and self.topics.topic_name(topic_id) is None:
            driver.apply(driver.shard.topic_deleted(name, topic_id))

    def administer(self) -> None:
        """Delete positions, or the group, in their two steps; most often it is refused."""
        groups, driver = self.driver.groups, self.driver
        try:
            if self.chance.random() < 0.5:
                keys = driver.apply(share_offsets.begin_delete_group(groups, "g"))
                self.delete_states(keys)
                driver.apply(driver.shard.delete_group("g"))
                self.epochs = (0, 0)
            else:
                begun = driver.apply(share_offsets.begin_delete_offsets(groups, "g", ["a", "c"]))
                self.delete_states(key for topic in begun for key in topic.keys)
                ids = [topic.topic_id for topic in begun if topic.keys]
                driver.apply(share_offsets.offsets_deleted(groups, "g", ids))
        except ApiError as error:
            if error.code not in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND):
                raise

    def delete_states(self, keys: Iterable[SharePartitionKey]) -> None:
        for key in keys:
            if self.chance.random() < 0.1:
                raise Crash
            self.driver.states.pop(key, None)

    def crash(self) -> None:
        """Die within the records of the next few events."""
        self.driver.fuse = self.chance.randrange(12)

    def restart(self) -> None:
        """What the runtime had in mind is forgotten; what it wrote is not."""
        self.driver.fuse = None
        self.underway.clear()
        self.driver.reload(compacted=self.chance.random() < 0.5)
        if self.group() is None:
            self.epochs = (0, 0)

    def move_shard(self) -> None:
        before = _state(self.group())
        self.restart()
        assert _state(self.group()) == before, "ReplayedState"

    def pass_time(self) -> None:
        self.consume()
        self.driver.advance(self.chance.choice((100, 1_000, HEARTBEAT_MS)))

    def pick(self) -> Client | None:
        alive = [client for client in self.clients if client.alive]
        return self.chance.choice(alive) if alive else None

    def group(self) -> ShareGroup | None:
        group = self.driver.shard.groups.get("g")
        assert group is None or isinstance(group, ShareGroup)
        return group

    # --- what must hold ------------------------------------------------------------------------

    def check(self) -> None:
        group = self.group()
        known = group.state.topic_ids() if group is not None else set()
        forgotten = {key for key in self.driver.states if key.topic_id not in known}
        assert not forgotten, f"NothingForgotten: {forgotten}"
        if group is None:
            return
        for member in group.members.values():
            for topic_id, partitions in member.assigned.items():
                name = self.topics.topic_name(topic_id)
                if name is None:
                    continue  # the topic has just been deleted; the next heartbeat tells
                for partition in partitions:
                    key = SharePartitionKey("g", topic_id, partition)
                    assert key in self.driver.states, f"InitializedFirst: {key}"
                assert name in member.topic_names, f"SubscribedOnly: {name}"
        deleting = group.state.deleting
        self.doomed |= {key for key in self.driver.states if key.topic_id in deleting}
        epochs = (group.epoch, group.assignment_epoch)
        assert epochs >= self.epochs, f"GrowingEpochs: {self.epochs} to {epochs}"
        self.epochs = epochs

    def converge(self) -> None:
        self.driver.fuse = None
        self.late.clear()
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
                while self.underway:
                    self.initialize(self.underway.pop(), refused=False)
                self.check()
            self.driver.advance(HEARTBEAT_MS)
        group = self.driver.share_group()
        given: dict[UUID, set[int]] = {}
        for client in self.clients:
            for topic_id, partitions in client.assigned.items():
                given.setdefault(topic_id, set()).update(partitions)
        assert given == self.wanted(), "Convergence: not all is given to somebody"
        left = given.keys() & group.state.initializing.keys()
        assert not left, f"Convergence: still initializing {left}"
        for client in self.clients:
            has_topics = any(self.topics.topic_id(name) for name in client.topics)
            assert client.assigned or not has_topics, f"Convergence: nothing for {client}"
        if len({client.topics for client in self.clients}) == 1:
            loads = [sum(map(len, client.assigned.values())) for client in self.clients]
            assert max(loads) - min(loads) <= 1, f"Convergence: {loads}"

    def wanted(self) -> dict[UUID, set[int]]:
        names = {name for client in self.clients for name in client.topics}
        ids = [topic_id for name in names if (topic_id := self.topics.topic_id(name))]
        return {t: set(range(self.topics.partition_count(t) or 0)) for t in ids}


def _state(group: ShareGroup | None) -> object:
    """All that the records of the group say."""
    if group is None:
        return None
    return (
        group.epoch,
        group.metadata_hash,
        group.assignment_epoch,
        group.assignment_timestamp_ms,
        group.members,
        group.target,
        group.state,
        group.subscribers,
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_share_group_keeps_its_promises_under_random_faults(seed: int) -> None:
    """One seed again: pytest -k "random_faults[SEED]"; more: MILLSTREAM_SIMULATION_SEEDS=1000."""
    try:
        Simulation(seed).run()
    except BaseException as error:
        error.add_note(f"simulation seed {seed}")
        raise
