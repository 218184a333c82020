"""A shard with the records it wrote, for tests: events are applied as the runtime applies them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from millstream.config.broker import BrokerConfig
from millstream.coordination.result import CoordinatorRecord, Result
from millstream.coordination.transactions.records import (
    TRANSACTION_RECORDS,
    TransactionState,
    TransactionValue,
)
from millstream.coordination.transactions.shard import (
    AddRequest,
    EndRequest,
    InitRequest,
    TransactionShard,
)
from millstream.coordination.transactions.transaction import Producer
from millstream.errors import ApiError, ErrorCode
from millstream.partitions import TopicPartition

ID = "tx"
T0: TopicPartition = ("t", 0)
T1: TopicPartition = ("t", 1)

Response = TypeVar("Response")


class Driver:
    """Applies events to a shard, and can load another from the bytes of what was written."""

    def __init__(self, **settings: object) -> None:
        self.settings = BrokerConfig.from_values(
            {name.replace("_", "."): value for name, value in settings.items()}
        )
        self.transaction_version = 2
        self.now_ms = 1_000_000
        self.log: list[CoordinatorRecord] = []
        self._next_producer_id = 1000
        self.shard = self._new_shard()

    def _new_shard(self) -> TransactionShard:
        return TransactionShard(
            lambda: self.settings, self._new_producer_id, lambda: self.transaction_version
        )

    def _new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def apply(self, result: Result[Response]) -> Response | None:
        for record in result.records:
            self.log.append(record)
            self.shard.replay(record)
        return result.response

    def reload(self) -> None:
        """Another shard, from the records as they are on disk."""
        self.shard = self._new_shard()
        for record in self.log:
            decoded = TRANSACTION_RECORDS.decode(
                *TRANSACTION_RECORDS.encode(record.key, record.value)
            )
            assert decoded is not None
            self.shard.replay(CoordinatorRecord(*decoded))
        self.apply(self.shard.loaded(self.now_ms))

    # --- requests

    def init(self, expected: Producer | None = None, timeout_ms: int = 60_000) -> Producer | None:
        request = InitRequest(ID, timeout_ms, expected)
        initialized = self.apply(self.shard.initialize(request, self.now_ms))
        assert initialized is not None
        return initialized.producer

    def started(self) -> Producer:
        """A producer, where none has a transaction open."""
        producer = self.init()
        assert producer is not None
        return producer

    def add(
        self, producer: Producer, *partitions: TopicPartition, version: int = 0, **more: Any
    ) -> None:
        request = AddRequest(ID, producer, frozenset(partitions or (T0,)), version, **more)
        self.apply(self.shard.add_partitions(request, self.now_ms))

    def end(
        self, producer: Producer, *, committed: bool = True, version: int = 0, **more: Any
    ) -> Producer:
        request = EndRequest(ID, producer, committed, version, **more)
        ended = self.apply(self.shard.end(request, self.now_ms))
        assert ended is not None
        return ended.producer

    def complete(self) -> None:
        self.apply(self.shard.complete(ID, self.now_ms))

    def transact(self, producer: Producer, *, committed: bool = True, version: int = 0) -> Producer:
        """A whole transaction; who the producer is afterwards."""
        self.add(producer, version=version)
        after = self.end(producer, committed=committed, version=version)
        self.complete()
        return after

    # --- what is there

    @property
    def value(self) -> TransactionValue:
        return self.shard.transactions[ID].value

    @property
    def state(self) -> TransactionState:
        return self.shard.transactions[ID].state

    def exhaust_epochs(self, epoch: int = 32766) -> Producer:
        """As if the producer had come that far."""
        record = self.log[-1]
        self.apply(
            Result((CoordinatorRecord(record.key, replace(record.value, producer_epoch=epoch)),))
        )
        return self.shard.transactions[ID].producer


@contextlib.contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    """What is done within is answered with this code, and changes nothing."""
    with pytest.raises(ApiError) as raised:
        yield
    assert raised.value.code is code
