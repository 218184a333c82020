"""Runs the workload: clients on a cluster, fault injection, and the recorded history.

    history = run_workload("127.0.0.1:9092", Plan(seconds=30, seed=7))
    check(history).raise_if_bad()

Two topics, `<prefix>-in` and `<prefix>-out`. Writers and transactors produce; workers of a group
consume, transform and produce in transactions; followers of other groups come and go, with the
classic and with the consumer protocol; a browser goes where it likes. A recreator deletes and
creates a topic of its own, `<prefix>-recreated-<number>`, again and again. Claimants append to
`<prefix>-claims` under a condition, if the cluster has conditional append. Sharers, members of a
share group, work on `<prefix>-in`, if the cluster has share groups. At the end the cluster is
healed, open transactions are aborted, everything is read from the beginning, and the share group
has time for what it has not dealt with.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.testing.histories.claiming import (
    Claimant,
    TransactionalClaimant,
    claimed_topic,
    create_claimed_topic,
)
from millstream.testing.histories.clients import (
    ANSWER_SECONDS_MAX,
    IMPATIENT,
    Browser,
    Client,
    Follower,
    Scene,
    Transactor,
    Worker,
    Writer,
    partition_name,
    persist,
    read_to_end,
)
from millstream.testing.histories.faults import Nemesis
from millstream.testing.histories.history import History, Kind, Operation
from millstream.testing.histories.recreation import Recreator, recreated_topic
from millstream.testing.histories.shares import settled_offsets
from millstream.testing.histories.sharing import GROUP, Sharer, configure_share_group

logger = logging.getLogger(__name__)

PROGRESS_EVERY_S = 0.2
CATCH_UP_S = 2.0
STOP_SECONDS_MAX = 60.0
SETTLE_SECONDS_MAX = 90.0  # records may be locked for 30 s by a member that is gone


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long, how much, by whom. The seed decides what clients and faults do next; when exactly
    they do it, the machine."""

    seconds: float = 30.0
    seed: int = 0
    partitions: int = 3
    writers: int = 2
    transactors: int = 2
    workers: int = 2  # of each group
    followers: int = 2  # of each group
    browsers: int = 1
    recreators: int = 1
    claimants: int = 3
    transactional_claimants: int = 1
    sharers: int = 0
    protocols: tuple[str, ...] = ("classic", "consumer")  # each has its groups
    rate: float = 50.0  # operations a second of each producer
    prefix: str = ""  # of topics, groups and transactional ids; empty: one that nobody has


@dataclass(frozen=True)
class Progress:
    """Progress of a run."""

    seconds: float
    phase: str
    history: History


def run_workload(
    bootstrap_servers: str,
    plan: Plan,
    client_config: Mapping[str, object] | None = None,
    nemesis: Nemesis | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> History:
    """Run the clients; returns their history.

    `client_config` has librdkafka's settings, e.g. for SASL or TLS. `nemesis` breaks the cluster
    while they run; `on_progress` is called a few times a second.
    """
    scene = Scene(
        config=dict(client_config or {}) | {"bootstrap.servers": bootstrap_servers},
        prefix=plan.prefix or f"check-{plan.seed}-{uuid.uuid4().hex[:6]}",
        partitions=plan.partitions,
        seed=plan.seed,
        rate=plan.rate,
    )
    return Run(scene, plan, on_progress).go(nemesis)


def remove_traces(
    bootstrap_servers: str, plan: Plan, client_config: Mapping[str, object] | None = None
) -> None:
    """Delete the topics and groups of a plan that named its prefix."""
    config = dict(client_config or {}) | {"bootstrap.servers": bootstrap_servers}
    admin = AdminClient(IMPATIENT | config)
    topics = [f"{plan.prefix}-in", f"{plan.prefix}-out"]
    topics += [recreated_topic(plan.prefix, number) for number in range(plan.recreators)]
    topics.append(claimed_topic(plan.prefix))
    for deleted in admin.delete_topics(topics).values():
        try:
            deleted.result(ANSWER_SECONDS_MAX)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
    for group in admin.list_consumer_groups().result(ANSWER_SECONDS_MAX).valid:
        if group.group_id.startswith(f"{plan.prefix}-"):
            # One whose members are only just leaving will expire.
            with contextlib.suppress(KafkaException):
                admin.delete_consumer_groups([group.group_id])[group.group_id].result(
                    ANSWER_SECONDS_MAX
                )


class Run:
    def __init__(self, scene: Scene, plan: Plan, on_progress: Callable[[Progress], None]) -> None:
        self.scene = scene
        self.plan = plan
        self.on_progress = on_progress
        self.began = time.monotonic()
        self.producers = [Writer(scene, f"writer-{i}") for i in range(plan.writers)]
        self.transactors = [Transactor(scene, f"transactor-{i}") for i in range(plan.transactors)]
        self.workers = [
            Worker(scene, f"{protocol}-worker-{i}", f"{protocol}-workers", protocol)
            for protocol in plan.protocols
            for i in range(plan.workers)
        ]
        self.consumers: list[Client] = [
            Follower(scene, f"{protocol}-follower-{i}", f"{protocol}-followers", protocol)
            for protocol in plan.protocols
            for i in range(plan.followers)
        ]
        self.consumers += [Browser(scene, f"browser-{i}") for i in range(plan.browsers)]
        self.recreators = [Recreator(scene, i) for i in range(plan.recreators)]
        known: dict[str, int] = {}
        self.claimants: list[Client] = [Claimant(scene, i, known) for i in range(plan.claimants)]
        self.transactional_claimants = [
            TransactionalClaimant(scene, i, known) for i in range(plan.transactional_claimants)
        ]
        self.claimants += self.transactional_claimants
        self.sharers = [Sharer(scene, i) for i in range(plan.sharers)]

    def go(self, nemesis: Nemesis | None) -> History:
        self.create_topics()
        producers: list[Client] = [*self.producers, *self.transactors, *self.workers]
        producers += [*self.recreators, *self.claimants]
        try:
            for client in [*producers, *self.consumers, *self.sharers]:
                client.start()
            if nemesis is not None:
                nemesis.start()
            self.pass_time(self.plan.seconds, "running")
            if nemesis is not None:
                nemesis.heal()
            self.stop([*self.producers, *self.transactors, *self.claimants], "stopping producers")
            self.pass_time(CATCH_UP_S, "catching up")
            self.stop([*producers, *self.consumers], "stopping clients")
            self.abort_leftovers()
            self.read_everything()
            self.settle_everything()
        finally:
            self.stop([*producers, *self.consumers, *self.sharers], "stopping clients")
        return self.scene.history

    def create_topics(self) -> None:
        self.prepare_sharers()
        admin = AdminClient(IMPATIENT | self.scene.config)
        names = (self.scene.inputs, self.scene.outputs)
        topics = [NewTopic(name, self.scene.partitions) for name in names]
        for future in admin.create_topics(topics).values():
            future.result(ANSWER_SECONDS_MAX)
        if self.claimants and not create_claimed_topic(self.scene):
            logger.info("the cluster has no conditional append: it is not checked")
            self.claimants, self.transactional_claimants = [], []

    def prepare_sharers(self) -> None:
        delay_ms = configure_share_group(self.scene) if self.sharers else None
        if self.sharers and delay_ms is None:
            logger.info("the cluster has no share groups: they are not checked")
            self.sharers = []
        for sharer in self.sharers:
            sharer.delay_ms = delay_ms or 0

    def pass_time(self, seconds: float, phase: str) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, PROGRESS_EVERY_S))
            self.report(phase)

    def report(self, phase: str) -> None:
        self.on_progress(Progress(time.monotonic() - self.began, phase, self.scene.history))

    def stop(self, clients: list[Client], phase: str) -> None:
        """Stop the clients, and wait until they have recorded their last operations."""
        for client in clients:
            client.stopping.set()
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for client in clients:
            while client.is_alive() and time.monotonic() < deadline:
                client.join(PROGRESS_EVERY_S)
                self.report(phase)
            if client.is_alive():
                logger.warning("%s is abandoned: its client library blocks", client.name)
                client.abandon()
            if client.failure is not None:
                raise client.failure

    def abort_leftovers(self) -> None:
        """Abort open transactions by taking over their transactional ids."""
        for client in [*self.transactors, *self.workers, *self.transactional_claimants]:
            persist(self.scene.transactional_producer(client.name).init_transactions)
            self.report("aborting what was left open")

    def read_everything(self) -> None:
        """Record a reader that reads every partition from the beginning to the end."""
        places = self.scene.places
        if self.claimants:
            topic = claimed_topic(self.scene.prefix)
            places += [TopicPartition(topic, index) for index in range(self.scene.partitions)]
        self.record_final(moved=sorted(partition_name(place) for place in places))
        for reads in read_to_end(self.scene, "final", places):
            self.record_final(reads=reads)
            self.report("reading everything")

    def settle_everything(self) -> None:
        """Wait until the share group has dealt with all records, or should have."""
        if not self.sharers:
            return
        history = self.scene.history
        wanted: dict[str, set[int]] = {
            partition_name(place): set()
            for place in self.scene.places
            if place.topic == self.scene.inputs
        }
        for operation in [it for it in history if it.final]:
            for read in operation.reads:
                if read.partition in wanted:
                    wanted[read.partition].add(read.offset)
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while time.monotonic() < deadline and not all(
            offsets <= settled_offsets(list(history), partition)
            for partition, offsets in wanted.items()
        ):
            self.pass_time(0.5, "settling")
        self.record_final(kind=Kind.SHARE, group=GROUP, moved=sorted(wanted))

    def record_final(self, kind: Kind = Kind.POLL, **fields: object) -> None:
        now_ns = time.monotonic_ns()
        self.scene.history.record(
            Operation(
                process="final",
                kind=kind,
                began_ns=now_ns,
                ended_ns=now_ns,
                final=True,
                **fields,  # type: ignore[arg-type]
            )
        )
