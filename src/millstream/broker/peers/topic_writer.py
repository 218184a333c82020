"""Appends records of the broker itself to a topic that any broker may lead: the audit, reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.peers.leaders import leader_of
from millstream.broker.peers.partitions import RemotePartitions
from millstream.broker.replicas.pending import ACKS_ALL
from millstream.errors import ApiError, ErrorCode
from millstream.records.record import Record, encode_batch

if TYPE_CHECKING:
    from millstream.broker.metadata.actions import ClusterActions
    from millstream.broker.metadata.store import MetadataLog
    from millstream.broker.peers.peers import Peers
    from millstream.broker.replicas.table import PartitionTable
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock


class Broker(Protocol):
    """What a writer needs of the broker."""

    @property
    def broker_id(self) -> int: ...
    @property
    def tasks(self) -> Tasks: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def metadata(self) -> MetadataLog: ...
    @property
    def actions(self) -> ClusterActions: ...
    @property
    def partitions(self) -> PartitionTable: ...
    @property
    def peers(self) -> Peers: ...


class TopicWriter:
    """Writes to partition 0 of a topic, which is created with these settings if it does not exist.
    The rights to read it are those of any topic."""

    def __init__(
        self, topic: str, broker: Broker, settings: Mapping[str, str | None] = MappingProxyType({})
    ) -> None:
        self._topic = topic
        self._broker = broker
        self._settings = settings
        self._remote = RemotePartitions(broker.peers)

    async def write(self, records: Sequence[tuple[bytes | None, bytes]]) -> None:
        """Append keys with values. Raises `MillstreamError`."""
        broker = self._broker
        if self._topic not in broker.metadata.image.topics:
            new = NewTopic(self._topic, partition_count=1, settings=self._settings)
            outcome = (await broker.actions.create_topics([new]))[self._topic]
            if isinstance(outcome, ApiError) and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise outcome
        await self._append(records)

    async def _append(self, records: Sequence[tuple[bytes | None, bytes]]) -> None:
        broker = self._broker
        now_ms = broker.clock.now_ms()
        batch = encode_batch(
            Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(records)
        )
        leader = leader_of(broker.metadata.image, self._topic, 0)
        if leader != broker.broker_id:
            await self._remote.append(leader, self._topic, 0, batch)
        else:
            await broker.partitions.find(self._topic, 0).append(batch, acks=ACKS_ALL)
