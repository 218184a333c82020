"""Produce in a transaction: verification with the coordinator before an append.

A producer's first batch in a transaction on a partition may be appended only if the coordinator has
added the partition to the transaction: otherwise no marker would ever end it there.

    protocol 1   the client has added the partition (AddPartitionsToTxn); this is verified in the
                 turn of the event loop in which the batch is appended, so nothing comes between
    protocol 2   (Produce from 12 on, transaction.version 2) the request itself adds its partitions,
                 all of them together; once that is durable, it is verified and appended as above,
                 for the transaction may have been aborted meanwhile

If the coordinator is another broker, it is asked before the append in both protocols, and a guard
makes sure that the transaction did not end meanwhile (`coordinators/verification.py`).

From the first batch to the marker the partition itself knows that the transaction is open, and
the coordinator is not asked. Its errors are translated to those that a producer expects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.error_codes import translate
from millstream.broker.replicas.partition import Partition
from millstream.broker.services import RequestContext
from millstream.coordination.cluster_features import TRANSACTION_VERSION
from millstream.errors import ApiError, ErrorCode
from millstream.protocol.produce import ProduceRequest, TopicKey
from millstream.protocol.wire import Buffer
from millstream.records.batch import (
    FLAGS_OFFSET,
    HEADER_SIZE_BYTES,
    PRODUCER,
    PRODUCER_ID_OFFSET,
    TRANSACTIONAL_FLAG,
)
from millstream.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Set

    from millstream.broker.coordinators.verification import Verdict
    from millstream.coordination.transactions.shard import AddRequest

FIRST_THAT_ADDS = 12
PROTOCOL_2 = 2


class BatchProducer(NamedTuple):
    """The producer of a transactional batch."""

    producer_id: int
    epoch: int
    first_sequence: int


def producer_of(records: Buffer | None) -> BatchProducer | None:
    """The producer of a transactional batch; None for any other."""
    if records is None or len(records) < HEADER_SIZE_BYTES:
        return None
    if not records[FLAGS_OFFSET] & TRANSACTIONAL_FLAG:
        return None
    return BatchProducer(*PRODUCER.unpack_from(records, PRODUCER_ID_OFFSET))


def refusal_of(context: RequestContext, request: ProduceRequest) -> ApiError | None:
    """The error of the whole request, if any."""
    producers = {
        producer[:2]
        for topic in request.topics
        for _, records in topic.partitions
        if (producer := producer_of(records)) is not None
    }
    if producers and request.transactional_id is None:
        return ApiError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "a transactional batch was sent without a transactional id",
        )
    if producers and request.transactional_id is not None:
        rights, name = context.client.rights, request.transactional_id
        if rights is not None and not rights.allows(
            Operation.WRITE, ResourceType.TRANSACTIONAL_ID, name
        ):
            return ApiError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if len(producers) > 1:
        return ApiError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            "Transactional records contained more than one producer ID",
        )
    return None


def adds_partitions(context: RequestContext) -> bool:
    """Whether a request adds its partitions to its transaction itself."""
    return (
        context.api_version >= FIRST_THAT_ADDS
        and context.services.metadata.image.features.get(TRANSACTION_VERSION, 0) >= PROTOCOL_2
    )


class Question(NamedTuple):
    """Partitions about which the coordinator has to be asked before the append."""

    request: AddRequest
    partitions: list[Partition]
    adds: bool  # them to the transaction
    is_elsewhere: bool  # the coordinator is another broker

    async def ask(self, context: RequestContext) -> Verdict:
        from millstream.broker.coordinators.verification import Verdict

        coordinators = context.services.coordinators
        if self.is_elsewhere:
            return await coordinators.verifier.ask(self.request, self.partitions, adds=self.adds)
        try:
            await coordinators.transactions.add_partitions(self.request)
        except ApiError as error:
            return Verdict(error)
        return Verdict()


def question_of(
    context: RequestContext, request: ProduceRequest, refused_topics: Set[TopicKey]
) -> Question | None:
    """What to ask the coordinator first; None if nothing: a coordinator on this broker verifies in
    the turn of the append. It is not asked about topics that are refused."""
    transactional_id = request.transactional_id
    if transactional_id is None:
        return None
    adds = adds_partitions(context)
    is_elsewhere = context.services.coordinators.verifier.is_elsewhere(transactional_id)
    if not adds and not is_elsewhere:
        return None
    partitions: list[Partition] = []
    producer: BatchProducer | None = None
    for topic in request.topics:
        for index, records in topic.partitions:
            writer = producer_of(records)
            if writer is None or topic.key in refused_topics:
                continue
            try:
                partition = context.services.partitions.find(topic.key, index)
            except ApiError:
                continue  # refused later, in order
            if not partition.is_in_transaction(writer.producer_id, writer.epoch):
                producer = writer
                partitions.append(partition)
    if producer is None:
        return None
    from millstream.coordination.transactions.shard import AddRequest
    from millstream.coordination.transactions.transaction import Producer

    addition = AddRequest(
        transactional_id,
        Producer(producer.producer_id, producer.epoch),
        frozenset((partition.topic, partition.index) for partition in partitions),
        PROTOCOL_2,
    )
    return Question(addition, partitions, adds, is_elsewhere)


def is_verified(
    context: RequestContext,
    transactional_id: str | None,
    partition: Partition,
    records: Buffer | None,
    verdict: Verdict | None,
) -> bool:
    """Whether a batch may open a transaction on the partition, in this turn; False if it need not.

    `verdict`: what the coordinator answered, if it was asked before. Raises `ApiError` for a batch
    that would have to open one and may not.
    """
    producer = producer_of(records)
    if producer is None or transactional_id is None:
        return False
    producer_id, epoch, first_sequence = producer
    if partition.is_in_transaction(producer_id, epoch):
        return False
    partition.check_producer_epoch(producer_id, epoch)
    try:
        if verdict is not None:
            verdict.check(partition)
        if verdict is None or not verdict.is_remote:
            context.services.coordinators.transactions.verify(
                transactional_id, producer_id, epoch, partition.topic, partition.index
            )
    except ApiError as error:
        raise to_produce_error(error, context) from error
    if first_sequence != 0 and adds_partitions(context) and not partition.knows(producer_id):
        # Every transaction has its own epoch, in which sequences start at 0: an earlier batch was
        # refused and is being resent.
        raise ApiError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer_id} (epoch {epoch}) begins with sequence {first_sequence}",
        )
    return True


def to_produce_error(error: ApiError, context: RequestContext) -> ApiError:
    """The coordinator's error, as Kafka returns it to a Produce of this version."""
    version = context.api_version
    if not adds_partitions(context):
        version = min(version, FIRST_THAT_ADDS - 1)
    code = translate("produce", error.code, version)
    if code is error.code:
        return error
    if code is ErrorCode.NOT_ENOUGH_REPLICAS:  # Kafka's message
        return ApiError(
            code,
            "Unable to verify the partition has been added to the transaction. Underlying error: "
            f"{error}",
        )
    return ApiError(code, error.message)
