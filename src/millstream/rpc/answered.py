"""The topic in which the servers of a group keep the replies that they gave.

Each server reads it before it handles requests of a partition that it has got: so a request that is
sent again gets its first reply also from another server, and after a restart. What concerns
partition N of the requests is in partition N here (modulo their number, if partitions were added).

Readers want to know everything that was acknowledged before, so they read up to the end of the log,
not to the last stable offset: a transaction that is about to be committed is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from millstream.client.cluster import Cluster
from millstream.client.fetching import fetch_committed
from millstream.client.offsets import log_bounds
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import MillstreamError
from millstream.records.columns import BinaryBuffers, BinaryColumn, decode_columns
from millstream.rpc.replies import REPLIES_KEPT, Reply

SUFFIX = "-answered"
SEGMENT_MS_MIN = 60_000
WAIT_MS = 100
TOPIC_SECONDS = 5.0  # how soon a topic that was created again is noticed
WAIT_SECONDS = 30.0  # longer than a transaction of a server that died stays open

Remember = Callable[[bytes, Reply, int], None]  # correlation id, reply, and when it was given


class AnsweredLog:
    """See the module. One thread at a time."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = topic
        self._cluster = cluster
        info = cluster.retrying(lambda: cluster.topic(topic))
        self._topic_id, self._partitions = info.id, len(info.partitions)
        self._positions: dict[int, int] = {}  # the next offset to read

    @classmethod
    def create(
        cls, cluster: Cluster, topic: str, request_topic: str, lifetime_seconds: float
    ) -> AnsweredLog:
        """The log, whose topic is created unless it exists."""
        requests = cluster.retrying(lambda: cluster.topic(request_topic))
        lifetime_ms = round(lifetime_seconds * 1000)
        settings = {
            "cleanup.policy": "delete",  # not compact: that keeps the last record of a key
            "retention.ms": str(lifetime_ms),
            "segment.ms": str(max(lifetime_ms // 4, SEGMENT_MS_MIN)),
        }
        create_topics(cluster, [NewTopic(topic, len(requests.partitions), settings)])
        return cls(cluster, topic)

    def partition_for(self, request_partition: int) -> int:
        return request_partition % self._partitions

    def catch_up(self, request_partitions: Iterable[int], remember: Remember) -> None:
        """Read what was written since the last time. Raises `MillstreamError` if the end is not
        reached."""
        self._check_topic()
        wanted = {self.partition_for(it) for it in request_partitions}
        bounds = log_bounds(self._cluster, [(self.topic, it) for it in sorted(wanted)])
        for partition in sorted(wanted):
            start, end = bounds[self.topic, partition]
            first = max(start, end - REPLIES_KEPT)
            position = self._positions.get(partition, first)
            self._read(partition, max(position, first), end, remember)

    def _check_topic(self) -> None:
        """Begin again if the topic was deleted and created again."""
        cluster = self._cluster
        info = cluster.retrying(lambda: cluster.topic(self.topic, seconds_old_max=TOPIC_SECONDS))
        if info.id != self._topic_id:
            self._topic_id, self._partitions = info.id, len(info.partitions)
            self._positions.clear()

    def _read(self, partition: int, position: int, end: int, remember: Remember) -> None:
        give_up_at = time.monotonic() + WAIT_SECONDS
        while position < end:
            found = fetch_committed(self._cluster, self.topic, partition, position, wait_ms=WAIT_MS)
            columns = decode_columns(found.records, first_offset=position, aborted=found.aborted)
            keys = _values(columns.row_count, columns.keys)
            values = _values(columns.row_count, columns.values)
            times_ms = memoryview(columns.timestamps).cast("q")
            for row, key in enumerate(keys):
                reply = Reply.decode(values[row])
                if key is not None and reply is not None:
                    remember(key, reply, times_ms[row])
            if columns.next_offset > position:
                position = columns.next_offset
            elif time.monotonic() > give_up_at:
                raise MillstreamError(
                    f"{self.topic}-{partition} cannot be read from offset {position} up to {end}: "
                    "a transaction is open"
                )
        self._positions[partition] = position


def _values(count: int, buffers: BinaryBuffers) -> list[bytes | None]:
    return BinaryColumn(count, 0, buffers.validity, buffers.offsets, buffers.data).to_list()
