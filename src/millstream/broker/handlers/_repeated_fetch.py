"""The fast path of Fetch: a request for one partition that a client repeats with other offsets.

A consumer without a session (librdkafka opens none) sends the same request again and again; only
the offset differs. So the first one is decoded and its partition looked up; the next is recognised
by its other bytes, and is answered, or waits, at a third of the cost.

Everything unusual is left to the full path: errors, quotas, paced clients, cold reads, aborted
transactions. It also takes over if something unusual happens while a request waits. What a request
depends on besides its bytes (the role of the partition, the client's rights) is checked every time.

Such a fetch is exclusive: a connection has one at a time, so the same object serves all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from millstream.broker.deferred import Buffers, Deferred
from millstream.broker.handlers._fetch_reading import count_bulk, read_records, response_bytes_max
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, NotCached
from millstream.protocol.fetch import (
    READ_COMMITTED,
    FetchRequest,
    RepeatedResponse,
    split_repeated_request,
)
from millstream.protocol.wire import Buffer, Piece
from millstream.records.batch import NO_LEADER_EPOCH
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from millstream.broker.replicas.partition import Partition

# As plain numbers, whose hashes are not computed in Python.
_READ = Operation.READ.value
_TOPIC = ResourceType.TOPIC.value
_NO_SESSION = (0, -1)  # id and epoch of a client that does not want one

TakeOver = Callable[[RequestContext, FetchRequest, Deferred], None]
"""Complete the deferred response on the full path, without waiting for records."""


class RepeatedFetch:
    """See the module."""

    _deferred: Deferred | None = None  # of the request that waits
    _timer: asyncio.TimerHandle | None = None
    _look_scheduled = False
    _offset = -1  # of the latest request

    def __init__(
        self,
        context: RequestContext,
        fixed_bytes: tuple[bytes, bytes],
        request: FetchRequest,
        partition: Partition,
        take_over: TakeOver,
    ) -> None:
        (topic_id, (wanted,)) = request.topics[0]
        assert isinstance(topic_id, UUID)
        self._context = context
        self._services = context.services
        self._client = context.client
        self._fixed_bytes = fixed_bytes
        self._request = request
        self._partition = partition
        self._take_over = take_over
        self._is_committed = request.isolation_level == READ_COMMITTED
        self._epoch = wanted.current_leader_epoch
        self._wait_seconds = request.max_wait_ms / 1000
        self._max_bytes = min(wanted.max_bytes, request.max_bytes)
        self._key = (topic_id, wanted.partition)
        self._response = RepeatedResponse(*self._key, committed=self._is_committed)

    def serve(self, context: RequestContext, body: Buffer) -> Buffers | Deferred | None:
        """The response; None if the request needs the full path."""
        if context is not self._context:
            return None
        parts = split_repeated_request(body, context.api_version)
        if parts is None or parts[0] != self._fixed_bytes or not self._is_usual():
            return None
        self._offset = parts[1]
        if self._offset != self._end_offset():
            return self._read()
        return self._wait() if self._wait_seconds > 0 else self._respond(b"")

    def partition_changed(self, partition: Partition) -> None:
        """Look once for all changes of this turn."""
        if not self._look_scheduled:
            self._look_scheduled = True
            self._services.turn.call_at_end(self._look)

    def _is_usual(self) -> bool:
        """Whether the partition and the client are as they usually are."""
        partition, rights = self._partition, self._client.rights
        return (
            partition.offline_error is None
            and (self._epoch == NO_LEADER_EPOCH or self._epoch == partition.leadership.epoch)
            and self._client.fetch_pacer is None
            and self._services.throttling.quotas is None
            and (rights is None or rights.allows(_READ, _TOPIC, partition.topic))
        )

    def _end_offset(self) -> int:
        """Up to where the client may read."""
        leadership = self._partition.leadership
        return leadership.last_stable_offset if self._is_committed else leadership.high_watermark

    def _read(self) -> list[Piece] | None:
        """The response with records; None if it needs the full path."""
        try:
            records, aborted = read_records(
                self._partition,
                self._offset,
                response_bytes_max(self._context, self._max_bytes),
                self._is_committed,
                may_block=False,
                may_send_file=self._client.takes_files,
            )
        except (ApiError, NotCached, OSError):
            return None
        if aborted or not records:
            return None
        count_bulk(self._client, self._key, len(records), self._services.loop.time())
        return self._respond(records)

    def _respond(self, records: Piece) -> list[Piece]:
        partition = self._partition
        partition.fetches += 1
        partition.bytes_out += len(records)
        leadership = partition.leadership
        return self._response.encode(
            leadership.high_watermark,
            leadership.last_stable_offset,
            partition.start_offset,
            records,
        )

    # Waiting

    def _wait(self) -> Deferred:
        deferred = self._deferred = Deferred(exclusive=True)
        deferred.on_cancel = self._stop_waiting
        self._timer = self._services.loop.call_later(self._wait_seconds, self._time_out)
        self._partition.watch(self)
        return deferred

    def _stop_waiting(self) -> None:
        self._deferred = None
        self._partition.unwatch(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """The partition has changed."""
        self._look_scheduled = False
        deferred = self._deferred
        if deferred is None:
            return
        is_usual = self._is_usual()
        if is_usual and self._offset == self._end_offset():
            return  # nothing that the client waits for
        self._stop_waiting()
        self._complete(deferred, self._read() if is_usual else None)

    def _time_out(self) -> None:
        deferred = self._deferred
        if deferred is not None:
            self._stop_waiting()
            self._complete(deferred, self._respond(b"") if self._is_usual() else None)

    def _complete(self, deferred: Deferred, response: list[Piece] | None) -> None:
        if response is not None:
            deferred.complete(response)
            return
        topic, (wanted,) = self._request.topics[0]
        topics = [(topic, [wanted._replace(fetch_offset=self._offset)])]
        self._take_over(self._context, self._request._replace(topics=topics), deferred)


def learn(
    context: RequestContext, body: Buffer, request: FetchRequest, take_over: TakeOver
) -> RepeatedFetch | None:
    """The fast path for requests like this one, which was decoded; None if they have none."""
    parts = split_repeated_request(body, context.api_version)
    if parts is None or len(request.topics) != 1 or len(request.topics[0][1]) != 1:
        return None
    if (request.session_id, request.session_epoch) != _NO_SESSION or request.min_bytes > 1:
        return None
    topic, (wanted,) = request.topics[0]
    try:
        partition = context.services.partitions.find(topic, wanted.partition)
    except ApiError:
        return None
    return RepeatedFetch(context, parts[0], request, partition, take_over)
