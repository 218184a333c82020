"""InitProducerId, v0-5: a producer id for an idempotent producer.

* v2: flexible
* v3: a transactional producer may name its id and epoch to get the next epoch (KIP-360); without
  a transactional id every request is answered with a new id
* v4: PRODUCER_FENCED
* v5: for transactions of version 2

Transactions do not exist yet. A transactional id is answered UNSUPPORTED_VERSION, which Java's
producer and librdkafka take as final and report in words; a retriable code would have them wait
without end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.broker.context import RequestContext
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from kio.schema.init_producer_id.v5.request import InitProducerIdRequest

    from millstream.broker.metadata import MetadataStore
    from millstream.protocol.messages import Fields


class ProducerIds:
    """Gives out producer ids from blocks that the metadata hand to this broker."""

    def __init__(self, store: MetadataStore, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._block: Iterator[int] = iter(())

    async def next(self) -> int:
        while True:
            producer_id = next(self._block, None)
            if producer_id is not None:
                return producer_id
            self._block = iter(await self._store.allocate_producer_ids(self._broker_id))


async def init_producer_id(context: RequestContext, request: InitProducerIdRequest) -> Fields:
    if request.transactional_id == "":
        raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    if request.transactional_id is not None:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION, "transactions are not supported yet")
    return {
        "error_code": ErrorCode.NONE,
        "producer_id": await context.broker.producer_ids.next(),
        "producer_epoch": 0,
    }
