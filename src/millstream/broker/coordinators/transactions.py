"""The transaction coordinator of this broker: its shards, markers and timeouts.

A transaction ends in three steps, the first two durable before the next begins:

    prepare    the shard's decision; then the client is answered
    markers    to all partitions at once, so that they share a flush
    complete   the record that all markers are written. No request waits for it: it is flushed with
               a later record, and if it is lost, the markers are written again

A restart continues with prepared transactions: markers may be written twice, which does no harm,
but never for a transaction whose end was not decided.

Between prepare and complete, Kafka answers CONCURRENT_TRANSACTIONS, and clients retry after 20 to
100 ms. Here the markers take one flush, so requests wait until they are written, and are refused
only if that takes long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from millstream.broker.coordinators.key_hash import InternalTopic, partition_for
from millstream.broker.coordinators.markers import Markers, WriteMarker
from millstream.broker.coordinators.runtime import CoordinatorRuntime
from millstream.broker.coordinators.timers import Timers
from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.producer_ids import ProducerIds
from millstream.broker.metadata.store import MetadataStore
from millstream.broker.replicas.table import PartitionTable
from millstream.clock import Clock
from millstream.coordination.result import Result
from millstream.coordination.transactions.records import TRANSACTION_RECORDS, TransactionValue
from millstream.coordination.transactions.shard import (
    AddRequest,
    EndRequest,
    InitRequest,
    TransactionShard,
)
from millstream.coordination.transactions.transaction import Producer, Transaction
from millstream.errors import ApiError, ErrorCode

logger = logging.getLogger(__name__)

HOLD_SECONDS_MAX = 0.25  # how long a request may wait for the end of the previous transaction
CLIENT_VERSION_2 = 2
TIME_OUT_TIMER = ("abort-timed-out",)

Response = TypeVar("Response")


class TransactionCoordinator:
    """The transactional ids whose partition of `__transaction_state` this broker leads."""

    def __init__(
        self,
        topic: str,
        metadata: MetadataStore,
        configs: ConfigManager,
        partitions: PartitionTable,
        producer_ids: ProducerIds,
        write_marker: WriteMarker,
        timers: Timers,
        clock: Clock,
    ) -> None:
        self._metadata = metadata
        self._internal = InternalTopic(
            topic,
            metadata,
            if_missing=(
                ErrorCode.NOT_COORDINATOR,
                f"{topic} does not exist yet; FindCoordinator creates it.",
            ),
        )
        self._configs = configs
        self._partitions = partitions
        self._producer_ids = producer_ids
        self._write_marker = write_marker
        self._timers = timers
        self._clock = clock
        # Of the transactions that are being ended.
        self._markers: dict[str, Markers] = {}
        # Requests that wait for such an end.
        self._waiting_for_end: dict[str, list[asyncio.Future[bool]]] = {}
        # Partitions whose addition is not durable yet.
        self._unconfirmed: set[tuple[str, str, int]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._runtime = CoordinatorRuntime(
            topic,
            TRANSACTION_RECORDS,
            self._new_shard,
            partitions=partitions,
            timers=timers,
            clock=clock,
            led_epoch=partial(self._internal.led_epoch, configs.broker_id),
            on_loaded=self._resume,
            on_resigned=self._resigned,
        )
        self._set_time_out_timer()

    def _new_shard(self) -> TransactionShard:
        return TransactionShard(
            settings=lambda: self._configs.current,
            new_producer_id=self._producer_ids.take,
            transaction_version=lambda: self._metadata.image.features.get("transaction.version", 0),
        )

    def load_all(self) -> None:
        """Load all shards of this broker, and resign from those of others."""
        self._runtime.lead(self._internal.partition_count)

    async def all_loaded(self) -> None:
        await self._runtime.all_loaded()

    async def stop(self) -> None:
        self._timers.cancel_all(self)
        for markers in self._markers.values():
            markers.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runtime.stop()

    # --- requests

    async def initialize(self, request: InitRequest) -> Producer:
        """InitProducerId: a producer, once its predecessor's open transaction is aborted."""
        while True:
            await self._producer_ids.ready()
            initialized = await self._run(
                request.transactional_id, lambda shard, now_ms: shard.initialize(request, now_ms)
            )
            if initialized.producer is not None:
                return initialized.producer
            self._prepared(request.transactional_id)

    async def add_partitions(self, request: AddRequest) -> None:
        """AddPartitionsToTxn and AddOffsetsToTxn: returns once it is durable."""
        transactional_id = request.transactional_id
        added: set[tuple[str, str, int]] = set()

        def add(shard: TransactionShard, now_ms: int) -> Result[Any]:
            result = shard.add_partitions(request, now_ms)
            added.update((transactional_id, *partition) for partition in result.response or ())
            self._unconfirmed |= added
            return result

        try:
            await self._run(transactional_id, add)
        finally:
            self._unconfirmed -= added

    async def add_partition(
        self, transactional_id: str, producer_id: int, producer_epoch: int, topic: str, index: int
    ) -> None:
        """Add a partition for a v2 request. Call `verify` in the turn of the append."""
        await self.add_partitions(
            AddRequest(
                transactional_id,
                Producer(producer_id, producer_epoch),
                frozenset(((topic, index),)),
                CLIENT_VERSION_2,
            )
        )

    def verify(
        self, transactional_id: str, producer_id: int, producer_epoch: int, topic: str, index: int
    ) -> None:
        """Raise unless the partition is in this producer's ongoing transaction.

        The caller appends in the same turn: nothing comes between the two.
        """
        if not self._configs.current.transaction_partition_verification_enable:
            return
        shard = self._runtime.shard(self._internal.index_of(transactional_id))
        shard.verify(transactional_id, Producer(producer_id, producer_epoch), (topic, index))
        if (transactional_id, topic, index) in self._unconfirmed:
            raise ApiError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"{topic}-{index} is being added to the transaction of {transactional_id}.",
            )

    async def end(self, request: EndRequest) -> Producer:
        """EndTxn: returns once the decision is durable; the markers follow."""
        await self._producer_ids.ready()
        ended = await self._run(
            request.transactional_id, lambda shard, now_ms: shard.end(request, now_ms)
        )
        if ended.is_new:
            # In the next turn, so that the answer leaves before the markers' flush, not after it.
            asyncio.get_running_loop().call_soon(self._prepared, request.transactional_id)
        return ended.producer

    async def describe(self, transactional_id: str) -> TransactionValue | None:
        """The state of one transactional id."""
        return await self._runtime.read(
            self._internal.index_of(transactional_id),
            lambda shard: shard.describe(transactional_id),
        )

    async def list_all(self) -> dict[str, TransactionValue]:
        """All transactional ids; raises COORDINATOR_LOAD_IN_PROGRESS while a shard is loading."""
        listed: dict[str, TransactionValue] = {}
        for index in range(self._internal.partition_count):
            try:
                listed |= await self._runtime.read(index, TransactionShard.list_all)
            except ApiError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:
                    raise
        return listed

    # --- waiting for the previous transaction

    async def _run(
        self, transactional_id: str, event: Callable[[TransactionShard, int], Result[Response]]
    ) -> Response:
        """Pass the shard an event, after the transaction that is being ended has ended."""
        index = self._internal.index_of(transactional_id)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + HOLD_SECONDS_MAX
        while True:
            try:
                return await self._runtime.run(index, event)
            except ApiError as error:
                if error.code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                    raise
                if not await self._wait_for_end(transactional_id, give_up_at - loop.time()):
                    raise

    async def _wait_for_end(self, transactional_id: str, seconds: float) -> bool:
        """Wait for the end in progress; False if it takes too long."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[bool] = loop.create_future()
        waiting = self._waiting_for_end.setdefault(transactional_id, [])
        waiting.append(ended)
        time_out = loop.call_later(max(seconds, 0), _resolve, ended, False)
        try:
            return await ended
        finally:
            time_out.cancel()
            waiting.remove(ended)
            if not waiting and self._waiting_for_end.get(transactional_id) is waiting:
                del self._waiting_for_end[transactional_id]

    # --- the end of a transaction

    def _prepared(self, transactional_id: str) -> None:
        """The decision is durable: write the markers."""
        index = self._internal.index_of(transactional_id)
        try:
            transaction = self._runtime.shard(index).transactions[transactional_id]
        except ApiError as error:  # the shard is reloaded and resumes it
            logger.warning("the end of %s waits: %s", transactional_id, error)
            return
        if transaction.is_prepared:  # else the shard was reloaded and has already continued
            self._tell_partitions(index, transaction)

    def _resume(self, index: int, shard: TransactionShard) -> None:
        """A shard was loaded: continue its prepared transactions."""
        for transaction in shard.prepared():
            logger.info("resuming the end of a transaction: %s", transaction.transactional_id)
            self._tell_partitions(index, transaction)

    def _resigned(self, index: int) -> None:
        """Another broker writes the markers now. Requests that wait for them look for it."""
        for transactional_id in list(self._markers):
            if self._is_in(index, transactional_id):
                self._markers.pop(transactional_id).cancel()
        for transactional_id, waiting in self._waiting_for_end.items():
            if self._is_in(index, transactional_id):
                for ended in waiting:
                    _resolve(ended, True)

    def _is_in(self, index: int, transactional_id: str) -> bool:
        """Whether it belongs to this shard; to any, if the internal topic was deleted."""
        count = self._internal.partition_count
        return not count or partition_for(transactional_id, count) == index

    def _tell_partitions(self, index: int, transaction: Transaction) -> None:
        transactional_id = transaction.transactional_id
        coordinator = self._partitions.find(self._internal.name, index)
        markers = Markers(
            transaction.marker(coordinator.leader_epoch),
            transaction.partitions,
            write=self._write_marker,
            exists=self._exists,
        )
        markers.when_done(lambda _: self._complete(index, transactional_id))
        superseded = self._markers.pop(transactional_id, None)
        if superseded is not None:  # of a shard that was reloaded
            superseded.cancel()
        self._markers[transactional_id] = markers
        markers.start()

    def _exists(self, topic: str, index: int) -> bool:
        image = self._metadata.image.topics.get(topic)
        return image is not None and index < len(image.partitions)

    def _complete(self, index: int, transactional_id: str) -> None:
        """All markers are durable. Waiting requests continue after the record of this turn."""
        del self._markers[transactional_id]
        for ended in self._waiting_for_end.pop(transactional_id, ()):
            _resolve(ended, True)
        try:
            self._runtime.run_unflushed(
                index, lambda shard, now_ms: shard.complete(transactional_id, now_ms)
            )
        except ApiError as error:  # the shard is reloaded and resumes it
            logger.warning("the end of %s could not be written: %s", transactional_id, error)

    # --- time

    def _set_time_out_timer(self) -> None:
        settings = self._configs.current
        interval_ms = settings.transaction_abort_timed_out_transaction_cleanup_interval_ms
        self._timers.set(self, TIME_OUT_TIMER, interval_ms, self._abort_timed_out)

    def _abort_timed_out(self) -> None:
        self._set_time_out_timer()
        now_ms = self._clock.now_ms()
        for shard in self._runtime.active_shards():
            for transactional_id in shard.timed_out(now_ms):
                self._start_task(self._abort(transactional_id))

    async def _abort(self, transactional_id: str) -> None:
        try:
            await self._producer_ids.ready()
            is_aborted = await self._runtime.run(
                self._internal.index_of(transactional_id),
                lambda shard, now_ms: shard.abort_timed_out(transactional_id, now_ms),
            )
            if is_aborted:
                logger.info("aborted a transaction after its timeout: %s", transactional_id)
                self._prepared(transactional_id)
        except ApiError as error:
            logger.warning("%s could not be aborted yet: %s", transactional_id, error)

    def _start_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _resolve(future: asyncio.Future[bool], result: bool) -> None:
    if not future.done():
        future.set_result(result)
