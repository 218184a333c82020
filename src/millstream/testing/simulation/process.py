"""A simulated broker process: replicas that lead and follow, produce and fetch requests.

This is the part that the broker's shells have: it carries out what the machines of
`coordination/replication` decide, on the real logs of its host.
"""

from __future__ import annotations

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import MetadataRecord
from millstream.coordination.replication import controller
from millstream.coordination.replication.leader import IsrChange
from millstream.coordination.replication.roles import Delete, Follow, Lead, Stop, role_changes
from millstream.errors import ApiError, ErrorCode
from millstream.records.batch import parse_header
from millstream.testing.simulation.fetching import Fetching
from millstream.testing.simulation.invariants import MIN_ISR, Key
from millstream.testing.simulation.serving import Serving
from millstream.testing.simulation.surroundings import Replica, Reply, Surroundings, Waiting
from millstream.testing.simulation.world import Action

LAG_MAX_MS = 600
TICK_MS = LAG_MAX_MS // 2


class Process:
    """See the module."""

    def __init__(self, cluster: Surroundings, host_id: int) -> None:
        self.cluster = cluster
        self.id = host_id
        self.is_dead = False
        self.is_paused = False
        self.backlog: list[tuple[str, Action]] = []
        self.disk = cluster.disks[host_id]
        self._found_logs = self.disk.open()
        self.replicas: dict[Key, Replica] = {}
        self.member = cluster.parts.member(self)
        self._applied = ClusterImage()  # the image whose roles are carried out
        self._is_flushing = False
        self._dirty: dict[Key, Replica] = {}
        self.is_stopping = False
        self.serving = Serving(self)
        self.fetching = Fetching(self)
        self.member.start()
        self.after(cluster.world.random.randint(1, TICK_MS), "tick", self._tick)

    def after(self, delay_ms: int, name: str, action: Action) -> None:
        self.cluster.world.after(delay_ms, f"{self.id} {name}", action, self)

    @property
    def now_ms(self) -> int:
        return self.cluster.world.now_ms

    # Roles

    def image_changed(self) -> None:
        """Carry out the roles of the newest image. Before it is registered, a process has none: the
        image may name it as the leader that its predecessor was."""
        image = self.member.image
        if self.member.broker_epoch < 0 and self._applied.version < 0:
            return
        before, self._applied = self._applied, image
        for change in role_changes(before, image, self.id):
            key = (change.topic_id, change.partition_id)
            match change:
                case Delete():
                    self._delete(key)
                case Stop():
                    self._resign(self._replica(change.topic, key), -1)
                case Follow():
                    self.follow(self._replica(change.topic, key), change)
                case Lead():
                    self._lead(self._replica(change.topic, key), change)
        if before.version < 0:
            self._delete_strays(image)
        if image.brokers is not before.brokers:
            active = controller.active_brokers(image)
            for replica in self.replicas.values():
                if replica.leader is not None:
                    replica.leader.brokers_changed(active)
        self.fetching.roles_changed()
        if self.is_stopping:
            self._stop_if_possible()

    def _replica(self, topic: str, key: Key) -> Replica:
        replica = self.replicas.get(key)
        if replica is None:
            log = self._found_logs.pop(key, None) or self.disk.create(topic, key)
            replica = self.replicas[key] = Replica(key, topic, log, log.log_start_offset)
        return replica

    def _delete(self, key: Key) -> None:
        replica = self.replicas.pop(key, None)
        if replica is not None:
            self._resign(replica, -1)
            self._dirty.pop(key, None)
            self.disk.delete(replica.log)
            self.cluster.invariants.deleted(self.id, key, self._applied)

    def _delete_strays(self, image: ClusterImage) -> None:
        """Logs of topics that were deleted, or moved away, while this host was down."""
        for key, log in list(self._found_logs.items()):
            if not log.is_deleted:
                self.disk.delete(log)
            self.cluster.invariants.deleted(self.id, key, image)
        for key in self.cluster.invariants.logs_of(self.id):
            if key not in self.replicas:
                self.cluster.invariants.deleted(self.id, key, image)
        self._found_logs.clear()

    def _resign(self, replica: Replica, leader_id: int) -> None:
        replica.leader_id = leader_id
        replica.leader = replica.follower = None
        waiting, replica.waiting = replica.waiting, []
        for it in waiting:
            it.reply(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def follow(self, replica: Replica, change: Follow) -> None:
        self._resign(replica, change.partition.leader)
        log = replica.log
        replica.follower = self.cluster.parts.follower(
            change.partition.leader_epoch,
            log.epochs,
            start=log.log_start_offset,
            end=log.log_end_offset,
            flushed_end=log.flushed_offset,
            high_watermark=replica.high_watermark,
        )
        self.request_flush(replica)  # what it appended as a leader

    def _lead(self, replica: Replica, change: Lead) -> None:
        log, partition = replica.log, change.partition
        if not change.is_new_epoch:
            if replica.leader is not None:
                if replica.leader.committed(partition):
                    self.advanced(replica)
                self._check_enough(replica)
            return
        waiting = replica.waiting if replica.leader is not None else []
        replica.waiting = []
        self._resign(replica, self.id)
        replica.waiting = waiting  # the same leader goes on in a new epoch
        log.assign_epoch(partition.leader_epoch)
        replica.leader = self.cluster.parts.leader(
            self.id,
            partition,
            end=log.log_end_offset,
            flushed_end=log.flushed_offset,
            high_watermark=replica.high_watermark,
            min_insync_replicas=MIN_ISR,
            lag_max_ms=LAG_MAX_MS,
            now_ms=self.now_ms,
            active=controller.active_brokers(self.member.image),
        )
        self.cluster.invariants.leads(
            self.id, self.member.incarnation, replica.key, partition.leader_epoch
        )
        self.request_flush(replica)
        self.advanced(replica)

    # Appending

    def produce(self, key: Key, batch: bytes, *, acks: int, reply: Reply) -> None:
        """Append a batch as the leader."""
        replica = self.replicas.get(key)
        leader = replica.leader if replica is not None else None
        if replica is None or leader is None or not self.member.is_live or self.is_stopping:
            reply(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        if acks == -1 and not leader.has_enough_replicas:
            reply(ErrorCode.NOT_ENOUGH_REPLICAS)
            return
        try:
            duplicate = replica.log.check_producer(parse_header(batch))
        except ApiError as error:
            reply(error.code)
            return
        if duplicate is None:
            self.disk.append(replica.key, replica.log, batch, leader.epoch)
            leader.appended(replica.log.log_end_offset)
            self.request_flush(replica)
            self.serving.appended(replica)
        if acks != -1:
            reply(None)
            return
        end = replica.log.log_end_offset if duplicate is None else duplicate.next_offset
        replica.waiting.append(Waiting(end, reply))
        self.advanced(replica)

    def request_flush(self, replica: Replica) -> None:
        self._dirty[replica.key] = replica
        if not self._is_flushing:
            self._is_flushing = True
            self.after(0, "begin to flush", self._flush)

    def _flush(self) -> None:
        replicas, self._dirty = list(self._dirty.values()), {}
        execute = self.disk.flush((it.key, it.log) for it in replicas)
        delay_ms = self.cluster.world.random.randint(0, self.disk.delay_max_ms)

        def flushed() -> None:
            execute()
            self._is_flushing = False
            for replica in replicas:
                self._flushed(replica)
            if self._dirty:
                self._is_flushing = True
                self._flush()

        self.after(delay_ms, "flush", flushed)

    def _flushed(self, replica: Replica) -> None:
        if replica.log.is_deleted:
            return
        end = replica.log.flushed_offset
        if replica.leader is not None and replica.leader.flushed(end):
            self.advanced(replica)
        if replica.follower is not None:
            replica.follower.flushed(end)
            self.fetching.wake(replica.leader_id)

    def advanced(self, replica: Replica) -> None:
        """The high watermark may have advanced: answer what is committed."""
        leader = replica.leader
        if leader is None:
            return
        if leader.high_watermark > replica.high_watermark:
            replica.high_watermark = leader.high_watermark
            self.cluster.invariants.high_watermark(
                self.id, replica.key, leader.epoch, leader.high_watermark
            )
        if not self.member.is_live:
            return  # another leader may answer differently
        waiting, replica.waiting = replica.waiting, []
        for it in waiting:
            if it.next_offset <= leader.high_watermark:
                self.cluster.invariants.acknowledged(replica.key, it.next_offset)
                it.reply(None)
            else:
                replica.waiting.append(it)

    def _check_enough(self, replica: Replica) -> None:
        if replica.leader is not None and not replica.leader.has_enough_replicas:
            waiting, replica.waiting = replica.waiting, []
            for it in waiting:
                it.reply(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    # In-sync sets

    def _tick(self) -> None:
        self.after(TICK_MS, "tick", self._tick)
        for replica in self.replicas.values():
            self.advanced(replica)
        self.propose()

    def propose(self) -> None:
        """Propose changes of in-sync sets, those of all partitions in one commit."""
        proposals = []
        for replica in self.replicas.values():
            change = replica.leader.tick(self.now_ms) if replica.leader is not None else None
            if change is not None:
                proposals.append(controller.Proposal(*replica.key, change))
        if not proposals:
            return
        errors: list[ApiError | None] = []

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            nonlocal errors
            records, errors = controller.alter_partitions(
                image, self.id, self.member.broker_epoch, proposals
            )
            return records

        def done() -> None:
            for proposal, error in zip(proposals, errors, strict=True):
                if error is not None:
                    self._refused((proposal.topic_id, proposal.partition_id), proposal.change)

        self.member.commit("alter in-sync sets", decide, done)

    def _refused(self, key: Key, change: IsrChange) -> None:
        replica = self.replicas.get(key)
        leader = replica.leader if replica is not None else None
        if leader is not None and leader.proposal == change and leader.refused():
            assert replica is not None
            self.advanced(replica)

    # Stopping

    def shut_down(self) -> None:
        """A controlled shutdown: move leaders away, then stop cleanly."""
        if self.is_stopping or self.member.broker_epoch < 0:
            return
        self.is_stopping = True
        epoch = self.member.broker_epoch
        self.member.commit(
            "shut down",
            lambda image: controller.shut_down(image, self.id, epoch),
            self._stop_if_possible,
        )

    def _stop_if_possible(self) -> None:
        broker = self.member.image.brokers.get(self.id)
        is_on_its_way = broker is not None and broker.in_controlled_shutdown
        if is_on_its_way and not self.is_dead and controller.may_stop(self.member.image, self.id):
            self.cluster.stopped(self)
