"""Classic groups under random joins, crashes, delays, time-outs and reloads; every run has a seed.

Clients behave like Kafka's: they join, the leader deals out the partitions, they heartbeat, rejoin
when told, start over when unknown. The network loses answers, clients crash or fall silent, static
members come back under a new id, and the shard is reloaded from its records, whole or compacted.

Invariants, checked after every step:

    single owner       in a generation no partition is assigned to two members
    stable owns all    the assignments of a stable group are all partitions
    generation grows   it never falls while a shard lives, and what is persisted never falls
    replay is state    the records give the same durable state as the shard has
    none is forgotten  a JoinGroup or SyncGroup is answered once, or waits with a member

And when all clients have fallen silent, every request that waits is answered in the end.

A failure prints the seed; `SEED=<n> pytest <this file>` runs that one alone.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from millstream.coordination.group_records import (
    GROUP_RECORDS,
    GroupMetadataValue,
)
from millstream.coordination.groups.classic import ClassicGroup
from millstream.coordination.groups.classic_messages import JoinResponse
from millstream.coordination.groups.classic_state import ClassicState
from millstream.coordination.groups.shard import GroupShard
from millstream.coordination.result import CoordinatorRecord, Result
from millstream.errors import ApiError, ErrorCode
from tests.coordination.groups.classic_harness import REBALANCE_MS, ClassicDriver, Client

PARTITIONS = 7
STEPS = 400
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else list(range(40))

START_OVER = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
REJOIN = {
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
}


@dataclass
class Actor:
    """One client and what it believes."""

    client: Client
    phase: str = "outside"  # outside, joining, syncing, member
    owned: tuple[int, ...] = ()
    members: tuple[str, ...] = field(default=())  # whom it has to deal to, as leader

    def react(self, error: ErrorCode) -> None:
        if error in START_OVER:
            self.client.member_id = ""
        self.phase, self.owned = "outside", ()


class WatchedDriver(ClassicDriver):
    """Remembers what each generation was assigned, what is persisted, and which requests wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: set[object] = set()
        self.persisted_generation = -1
        self._assignments: dict[int, list[bytes]] = {}  # by generation, as persisted

    def apply(self, result: Result[object]) -> object:
        for record in result.records:
            if isinstance(record.value, GroupMetadataValue):
                self._check_record(record.value)
        for answer in result.answers:
            assert answer.token in self.waiting, "none is forgotten: answered twice"
            self.waiting.remove(answer.token)
        return super().apply(result)

    def new_token(self) -> int:
        token = super().new_token()
        self.waiting.add(token)
        return token

    def _check_record(self, value: GroupMetadataValue) -> None:
        assert value.generation >= self.persisted_generation, "generation grows"
        self.persisted_generation = value.generation
        dealt = [partition for member in value.members for partition in member.assignment]
        assert len(dealt) == len(set(dealt)), "single owner"
        if value.members:
            assert sorted(dealt) == list(range(PARTITIONS)), "stable owns all"
            # A generation is written again only when a static member gets a new id.
            assigned = sorted(member.assignment for member in value.members)
            assert self._assignments.setdefault(value.generation, assigned) == assigned, (
                "single owner"
            )


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.driver = WatchedDriver()
        self.actors = [
            Actor(
                Client(
                    self.driver,
                    f"c{number}",
                    instance_id=f"i{number}" if number % 3 == 0 else None,
                    api_version=self.random.choice((3, 5, 9)) if number % 3 else 9,
                    protocols=[("range", b""), ("sticky", b"")][:: self.random.choice((1, -1))],
                )
            )
            for number in range(6)
        ]
        self.generation = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.check()

    def step(self) -> None:
        actor = self.random.choice(self.actors)
        event = self.random.choices(
            (self.act, self.pass_time, self.crash, self.restart, self.leave, self.reload),
            weights=(70, 18, 3, 3, 3, 3),
        )[0]
        event(actor)

    # --- events

    def act(self, actor: Actor) -> None:
        try:
            getattr(self, f"_when_{actor.phase}")(actor)
        except ApiError as error:
            if error.code not in START_OVER | REJOIN:
                raise
            # Refused at once, so it does not wait; a heartbeat or a commit has no token.
            self.driver.waiting -= {actor.client.join_token, actor.client.sync_token}
            actor.react(error.code)

    def _when_outside(self, actor: Actor) -> None:
        actor.client.send_join()
        actor.phase = "joining"

    def _when_joining(self, actor: Actor) -> None:
        answer = actor.client.joined
        if answer is None:
            return
        if answer.error is not ErrorCode.NONE:
            actor.react(answer.error)
        elif self.random.random() < 0.05:
            actor.phase = "outside"  # the answer was lost: it will ask again
        else:
            self._take_join(actor, answer)

    def _take_join(self, actor: Actor, answer: JoinResponse) -> None:
        actor.client.take_join()
        leads = answer.leader == answer.member_id and not answer.skip_assignment
        actor.members = tuple(it.member_id for it in answer.members) if leads else ()
        actor.client.send_sync(deal(actor.members))
        actor.phase = "syncing"

    def _when_syncing(self, actor: Actor) -> None:
        answer = actor.client.synced
        if answer is None:
            return
        if answer.error is not ErrorCode.NONE:
            actor.react(answer.error)
        elif self.random.random() < 0.05:
            actor.client.send_sync(deal(actor.members))
        else:
            actor.owned, actor.phase = tuple(answer.assignment), "member"

    def _when_member(self, actor: Actor) -> None:
        error = actor.client.heartbeat()
        if error is not ErrorCode.NONE:
            actor.react(error)
        elif self.random.random() < 0.1:
            actor.client.send_join()
            actor.phase = "joining"
        elif actor.owned:
            assert actor.client.commit(1, partition=0) is ErrorCode.NONE

    def pass_time(self, _: Actor) -> None:
        self.driver.advance(self.random.choice((10, 500, 3_000, 9_000, 30_000)))

    def crash(self, actor: Actor) -> None:
        """The process is gone and nobody comes back for a while: its session times out."""
        actor.client.member_id, actor.phase, actor.owned = "", "outside", ()

    def restart(self, actor: Actor) -> None:
        """The process is gone and back at once; a static member takes its old place."""
        self.crash(actor)
        self.act(actor)

    def leave(self, actor: Actor) -> None:
        if actor.phase == "member":
            actor.client.leave()
            self.crash(actor)

    def reload(self, _: Actor) -> None:
        """The shard is loaded anew. Requests that waited fail: the connection says so."""
        self.driver.waiting.clear()
        self.driver.reload(compacted=self.random.random() < 0.5)
        self.generation = 0
        for actor in self.actors:
            if actor.phase in ("joining", "syncing"):
                actor.phase = "outside"

    # --- invariants

    def check(self) -> None:
        group = self.driver.shard.groups.get("g")
        if not isinstance(group, ClassicGroup):
            return
        assert group.generation >= self.generation, "generation grows"
        self.generation = group.generation
        self._check_owners(group)
        self._check_replay(group)
        held = {token for it in group.members for token in (it.join_token, it.sync_token)}
        assert self.driver.waiting == held - {None}, "none is forgotten"

    def fall_silent(self) -> None:
        """No client says anything any more. A new member's join is the last to be given up."""
        settings = self.driver.shard.context.settings
        self.driver.advance(settings.group_new_member_join_timeout_ms + 2 * REBALANCE_MS)
        assert not self.driver.waiting, "none is forgotten: waits forever"

    def _check_owners(self, group: ClassicGroup) -> None:
        """Of those who believe to be in the group's generation, and are, no two own a partition."""
        owned = [
            partition
            for actor in self.actors
            if actor.phase == "member"
            and actor.client.generation == group.generation
            and actor.client.member_id in group.members
            for partition in actor.owned
        ]
        assert len(owned) == len(set(owned)), "single owner"
        if group.state is ClassicState.STABLE:
            dealt = sorted(partition for it in group.members for partition in it.assignment)
            assert dealt == list(range(PARTITIONS)), "stable owns all"

    def _check_replay(self, group: ClassicGroup) -> None:
        """A rebalance under way is not persisted; before and after it the records tell all."""
        if group.state in (ClassicState.STABLE, ClassicState.EMPTY):
            assert durable(replayed(self.driver)) == durable(self.driver.shard), "replay is state"


def deal(members: tuple[str, ...]) -> dict[str, bytes]:
    """Every partition to one member: a partition is a byte of the assignment."""
    return {
        member: bytes(range(number, PARTITIONS, len(members)))
        for number, member in enumerate(members)
    }


def replayed(driver: ClassicDriver) -> GroupShard:
    shard = driver._new_shard()
    for key, value in driver.log:
        decoded = GROUP_RECORDS.decode(key, value)
        assert decoded is not None
        shard.replay(CoordinatorRecord(*decoded))
    return shard


def durable(shard: GroupShard) -> dict[str, object]:
    """What must survive: offsets, and of each group what its last record says."""
    state: dict[str, object] = {}
    for group_id, group in shard.groups.items():
        assert isinstance(group, ClassicGroup)
        members = {
            it.member_id: (
                it.group_instance_id,
                it.client_id,
                it.assignment,
                it.session_timeout_ms,
                it.metadata(group.protocol_name),
            )
            for it in group.members
        }
        state[group_id] = (
            group.state,
            group.generation,
            group.protocol_type,
            group.protocol_name,
            group.leader_id,
            group.state_since_ms,
            members,
            sorted(shard.offsets.of_group(group_id), key=lambda it: it[0].partition),
        )
    return state


@pytest.mark.parametrize("seed", SEEDS)
def test_groups_keep_their_invariants_in_a_random_world(seed: int) -> None:
    try:
        simulation = Simulation(seed)
        simulation.run(STEPS)
        simulation.fall_silent()
    except (AssertionError, ApiError) as error:
        raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000, 1_500))
def test_groups_keep_their_invariants_in_many_random_worlds(seed: int) -> None:
    test_groups_keep_their_invariants_in_a_random_world(seed)


def test_simulation_reaches_stable_groups_of_several_members() -> None:
    """Guards the simulation itself: a world in which nothing happens keeps every invariant."""
    generations, sizes = 0, set()
    for seed in range(10):
        simulation = Simulation(seed)
        for _ in range(STEPS):
            simulation.step()
            group = simulation.driver.shard.groups.get("g")
            if isinstance(group, ClassicGroup) and group.state is ClassicState.STABLE:
                sizes.add(len(group.members))
                generations = max(generations, group.generation)
    assert generations > 10
    assert max(sizes) >= 4
