"""Simulated producers, and what they were promised.

An idempotent producer sends one batch at a time to a partition, and sends it again until it is
acknowledged. So each of its batches is in the log once, in order, and none that was acknowledged is
missing. Others send with acks=1: nothing is promised to them, but their records are in the way.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from millstream.errors import ErrorCode
from millstream.records.batch import iterate_headers
from millstream.records.record import Record, encode_batch
from millstream.testing.simulation.hosts import read_all
from millstream.testing.simulation.network import CLIENT

if TYPE_CHECKING:
    from millstream.testing.simulation.cluster import Cluster

ANSWER_MS = 400
BACKOFF_MS = 40
THINK_MS = 30
ACKS_ALL = -1


class Producer:
    def __init__(self, cluster: Cluster, number: int, topic: str, index: int, acks: int) -> None:
        self._cluster = cluster
        self._topic = topic
        self._index = index
        self._acks = acks
        self._id = number if acks == ACKS_ALL else -1
        self._topic_id: uuid.UUID | None = None
        self._attempt = 0
        self.sequence = 0
        self.acknowledged: dict[uuid.UUID, list[int]] = {}  # topic id -> sequences
        self.is_stopping = False
        self.is_idle = False
        cluster.world.after(number, "produce", self._send)

    def _batch(self) -> bytes:
        value = f"{self._id} {self.sequence} {self._attempt if self._id < 0 else 0}".encode()
        records = [
            Record(offset, 1_000 + offset, None, value, ()) for offset in range(1 + self._index)
        ]
        if self._id < 0:
            return encode_batch(records)
        return encode_batch(
            records, producer_id=self._id, producer_epoch=0, base_sequence=self.sequence
        )

    def _send(self) -> None:
        """Send the current batch to the leader that some broker, perhaps late, knows of."""
        world, cluster = self._cluster.world, self._cluster
        known = [it for it in cluster.processes.values() if not it.is_paused]
        image = world.random.choice(known).member.image if known else cluster.zookeeper.image
        topic = image.topics.get(self._topic)
        if topic is not None and topic.id != self._topic_id:
            if topic.id in self.acknowledged:
                topic = None  # an old image: this topic was deleted
            else:
                self._topic_id = topic.id  # it was recreated, and is empty
                self.acknowledged[topic.id] = []
                self.sequence = 0
        self._attempt += 1
        attempt, topic_id = self._attempt, self._topic_id
        target = (
            cluster.processes.get(topic.partitions[self._index].leader)
            if topic is not None
            else None
        )
        if target is None or topic_id is None:
            world.after(BACKOFF_MS, "produce", self._send)
            return
        batch, host, sequence = self._batch(), target.id, self.sequence

        def reply(error: ErrorCode | None) -> None:
            cluster.network.send(
                host,
                CLIENT,
                f"produced {self._id}.{sequence} {error.name if error else ''}",
                lambda: self._answered(attempt, topic_id, error),
                None,
            )

        cluster.network.send(
            CLIENT,
            host,
            f"produce {self._id}.{sequence}",
            lambda: target.produce((topic_id, self._index), batch, acks=self._acks, reply=reply),
            target,
        )
        world.after(
            ANSWER_MS,
            "produce: no answer",
            lambda: self._answered(attempt, topic_id, ErrorCode.REQUEST_TIMED_OUT),
        )

    def _answered(self, attempt: int, topic_id: uuid.UUID | None, error: ErrorCode | None) -> None:
        if attempt != self._attempt or topic_id is None:
            return
        self._attempt += 1  # a second answer, or the end of the time, means nothing
        world = self._cluster.world
        if error is not None and (self._id >= 0 or error is not ErrorCode.REQUEST_TIMED_OUT):
            world.after(BACKOFF_MS, "produce again", self._send)
            return
        self.acknowledged[topic_id].append(self.sequence)
        self.sequence += 1 + self._index
        if self.is_stopping:
            self.is_idle = True
            return
        world.after(world.random.randint(1, THINK_MS), "produce", self._send)

    def check(self) -> None:
        """What was acknowledged is there, each batch once and in order (1, 9)."""
        topic = self._cluster.zookeeper.image.topics.get(self._topic)
        if topic is None or self._id < 0:
            return
        leader = topic.partitions[self._index].leader
        log = self._cluster.processes[leader].replicas[topic.id, self._index].log
        sequences = [
            header.base_sequence
            for _, header in iterate_headers(read_all(log))
            if header.producer_id == self._id
        ]
        wanted = self.acknowledged.get(topic.id, [])
        if sequences:  # older ones may have been deleted from the front
            wanted = [sequence for sequence in wanted if sequence >= sequences[0]]
        elif log.log_start_offset:
            wanted = []
        if sequences != wanted:
            raise self._cluster.world.violation(
                f"producer {self._id} was acknowledged {wanted[-5:]} of {len(wanted)}, and "
                f"partition {self._index} has {sequences[-5:]} of {len(sequences)}"
            )
