"""A simulated cluster: hosts, their processes, ZooKeeper, the network, and the parts under test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millstream.coordination.cluster import ClusterImage, PartitionImage
from millstream.coordination.cluster_records import (
    MetadataRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from millstream.coordination.replication import controller, placement
from millstream.coordination.replication.follower import FollowerReplica
from millstream.coordination.replication.leader import LeaderReplica
from millstream.coordination.replication.reassignment import Target, is_reassigning, reassign
from millstream.errors import ApiError, ErrorCode
from millstream.testing.simulation.hosts import Disk, new_uuid
from millstream.testing.simulation.invariants import Invariants, Key
from millstream.testing.simulation.member import Member
from millstream.testing.simulation.network import Network
from millstream.testing.simulation.process import Process
from millstream.testing.simulation.serving import check_epoch
from millstream.testing.simulation.world import World
from millstream.testing.simulation.zookeeper import ZooKeeper

EXPIRY_MS = 50


@dataclass(frozen=True)
class Parts:
    """What is under test. A test puts a broken part in, to see that the invariants notice."""

    leader: Callable[..., LeaderReplica] = LeaderReplica
    follower: Callable[..., FollowerReplica] = FollowerReplica
    process: Callable[[Cluster, int], Process] = Process
    member: Callable[[Process], Member] = Member
    zookeeper: Callable[[World, Invariants], ZooKeeper] = ZooKeeper
    check_epoch: Callable[[int, int], ErrorCode | None] = check_epoch


class Cluster:
    def __init__(self, seed: int, *, host_count: int = 3, parts: Parts | None = None) -> None:
        self.parts = parts or Parts()
        self.world = World(seed)
        self.network = Network(self.world)
        self.invariants = Invariants(self.world)
        self.zookeeper = self.parts.zookeeper(self.world, self.invariants)
        self.hosts = list(range(1, host_count + 1))
        self.disks = {host: Disk(host, self.invariants) for host in self.hosts}
        self.processes: dict[int, Process] = {}  # those that run
        self.prefers_leaders = False
        self.restarts = True  # whether a process that stopped is started again
        self._expire()

    def reconcile(
        self, image: ClusterImage, live: Mapping[int, uuid.UUID]
    ) -> Sequence[MetadataRecord]:
        return controller.reconcile(image, live)

    def _expire(self) -> None:
        self.zookeeper.expire_sessions()
        self.world.after(EXPIRY_MS, "zookeeper expires sessions", self._expire)

    # Processes

    def start(self, host: int) -> None:
        if host not in self.processes:
            self.world.note(f"start {host}")
            self.processes[host] = self.parts.process(self, host)

    def kill(self, host: int, *, cuts_power: bool) -> None:
        process = self.processes.pop(host, None)
        if process is not None:
            self.world.note(f"{'power cut' if cuts_power else 'kill'} {host}")
            process.is_dead = True
            self.disks[host].kill(cuts_power=cuts_power, random=self.world.random)

    def stopped(self, process: Process) -> None:
        """A process has shut down."""
        if self.processes.get(process.id) is process:
            self.world.note(f"stop {process.id}")
            process.is_dead = True
            del self.processes[process.id]
            self.disks[process.id].stop()
            if self.restarts:
                self.world.after(100, "start again", lambda: self.start(process.id))

    # What an administrator does: decided on the newest image, without a race

    def change(self, decide: Callable[[ClusterImage], Sequence[MetadataRecord]]) -> None:
        records = decide(self.zookeeper.image)
        if records:
            self.zookeeper.apply(0, records)

    def create_topic(self, name: str, partition_count: int, factor: int = 3) -> None:
        def decide(image: ClusterImage) -> list[MetadataRecord]:
            usable = placement.usable_brokers(image.brokers.values())
            if name in image.topics or len(usable) < factor:
                return []
            topic_id = new_uuid(self.world.random)
            placed = placement.place(usable, partition_count, factor, self.world.random)
            return [
                TopicRecord(name, topic_id),
                *(
                    PartitionRecord(index, topic_id, replicas, replicas, replicas[0])
                    for index, replicas in enumerate(placed)
                ),
            ]

        self.change(decide)

    def delete_topic(self, name: str) -> None:
        topic = self.zookeeper.image.topics.get(name)
        if topic is not None:
            self.change(lambda image: [RemoveTopicRecord(topic.id)])

    def reassign(self, name: str, index: int) -> None:
        """Move a partition to other hosts."""
        image = self.zookeeper.image
        topic = image.topics.get(name)
        if topic is not None and not is_reassigning(topic.partitions[index]):
            replicas = tuple(self.world.random.sample(self.hosts, 3))
            self.change(lambda image: reassign(image, [Target(name, index, replicas)])[0])

    def unregister(self, host: int) -> None:
        """Forget a broker, if it may be forgotten."""

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            try:
                return controller.unregister(image, host)
            except ApiError:
                return []

        self.change(decide)

    # The state

    def partitions(self) -> dict[Key, PartitionImage]:
        return {
            (topic.id, index): partition
            for topic in self.zookeeper.image.topics.values()
            for index, partition in enumerate(topic.partitions)
        }

    def problem(self) -> str | None:
        """What keeps the cluster from being healed (12), or None."""
        image = self.zookeeper.image
        for host in self.hosts:
            process = self.processes.get(host)
            if process is None or process.member.image.version != image.version:
                return f"host {host} does not have the newest metadata"
            broker = image.brokers.get(host)
            if broker is None or not broker.is_active:
                return f"broker {host} is not active"
            logs = {key for key, it in self.partitions().items() if host in it.replicas}
            if set(process.replicas) != logs:
                return f"host {host} has logs of {len(process.replicas)} of {len(logs)} replicas"
        for key, partition in self.partitions().items():
            if is_reassigning(partition):
                return f"partition {key[1]} is being moved: {partition}"
            if set(partition.isr) != set(partition.replicas):
                return f"partition {key[1]} is not in sync: {partition}"
            if partition.leader != partition.replicas[0]:
                return f"partition {key[1]} is not led by its preferred replica: {partition}"
            leader = self.processes[partition.leader].replicas[key]
            if leader.waiting or leader.high_watermark != leader.log.log_end_offset:
                return f"partition {key[1]} has records that are not committed"
            for replica in partition.replicas:
                if self.invariants.crc_of(replica, key) != self.invariants.crc_of(
                    partition.leader, key
                ):
                    return f"partition {key[1]} differs on {replica}"
        return None
