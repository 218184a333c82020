"""TxnOffsetCommit, v0-5: commit offsets of a group in a producer's transaction.

* v2: leader epoch (KIP-320)
* v3: flexible; member id, generation and group instance id, so that a zombie is fenced (KIP-447)
* v4: TRANSACTION_ABORTABLE (KIP-890)
* v5: adds the partition of `__consumer_offsets` to the transaction itself (KIP-890)

The offsets are pending until the transaction ends. Before v5 AddOffsetsToTxn must have added the
partition; either way that is verified in the very turn in which the offsets are appended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.broker.error_codes import translate
from millstream.broker.handlers._offset_commits import commit_topics, refuse_topics
from millstream.broker.handlers._rights import require_group, require_transaction
from millstream.broker.services import RequestContext
from millstream.coordination.cluster import OFFSETS_TOPIC
from millstream.coordination.groups.group import OffsetCommitter, require_group_id
from millstream.coordination.groups.offsets import (
    CommitRequest,
    CommittedPartition,
    TopicCommit,
)
from millstream.coordination.groups.shard import GroupShard
from millstream.coordination.result import Result
from millstream.coordination.transactions.shard import AddRequest
from millstream.coordination.transactions.transaction import Producer
from millstream.errors import ApiError, ErrorCode
from millstream.security.acls import Operation

if TYPE_CHECKING:
    from kio.schema.txn_offset_commit.v5.request import TxnOffsetCommitRequest

    from millstream.broker.coordinators.verification import Verdict
    from millstream.protocol.messages import Fields

CLIENT_VERSION_2 = 2
FIRST_THAT_ADDS_ITS_PARTITION = 5


async def txn_offset_commit(context: RequestContext, request: TxnOffsetCommitRequest) -> Fields:
    async def commit(topics: tuple[TopicCommit, ...]) -> tuple[CommittedPartition, ...]:
        try:
            return await _commit(context, request, topics)
        except ApiError as error:
            raise ApiError(
                translate("txn_offset_commit", error.code, context.api_version), error.message
            ) from error

    try:
        require_transaction(context, Operation.WRITE, request.transactional_id)
        require_group(context, Operation.READ, request.group_id)
    except ApiError as error:
        return {"topics": refuse_topics(request.topics, error.code)}
    return {"topics": await commit_topics(context, request.topics, by_id=False, commit=commit)}


async def _commit(
    context: RequestContext, request: TxnOffsetCommitRequest, topics: tuple[TopicCommit, ...]
) -> tuple[CommittedPartition, ...]:
    require_group_id(request.group_id)
    coordinators = context.services.coordinators
    groups, transactions = coordinators.groups, coordinators.transactions
    producer_id, epoch = request.producer_id, request.producer_epoch
    index = groups.index_of(request.group_id)
    partition = (request.transactional_id, producer_id, epoch, OFFSETS_TOPIC, index)
    adds = context.api_version >= FIRST_THAT_ADDS_ITS_PARTITION
    verdict: Verdict | None = None
    target = context.services.partitions.get(OFFSETS_TOPIC, index)
    if target is None or not target.is_led_here:
        raise ApiError(ErrorCode.NOT_COORDINATOR, f"{OFFSETS_TOPIC}-{index} is led elsewhere.")
    is_elsewhere = coordinators.verifier.is_elsewhere(request.transactional_id)
    if is_elsewhere and not target.is_in_transaction(producer_id, epoch):
        asked = AddRequest(
            request.transactional_id,
            Producer(producer_id, epoch),
            frozenset([(OFFSETS_TOPIC, index)]),
            CLIENT_VERSION_2,
        )
        verdict = await coordinators.verifier.ask(asked, [target], adds=adds)
    elif adds and not is_elsewhere:
        await transactions.add_partition(*partition)
    wanted = CommitRequest(
        group_id=request.group_id,
        committer=OffsetCommitter(
            member_id=request.member_id,
            generation_or_epoch=request.generation_id,
            group_instance_id=request.group_instance_id,
            api_version=context.api_version,
            is_transactional=True,
        ),
        topics=topics,
    )

    def verify_and_commit(shard: GroupShard, now_ms: int) -> Result[tuple[CommittedPartition, ...]]:
        if verdict is not None:
            verdict.check(target)
        elif is_elsewhere:
            if not target.is_in_transaction(producer_id, epoch):
                raise ApiError(
                    ErrorCode.CONCURRENT_TRANSACTIONS, "its transaction has ended: retry"
                )
        else:
            transactions.verify(*partition)
        return shard.commit_offsets(wanted, now_ms)

    try:
        return await groups.run(
            request.group_id, verify_and_commit, transaction=(producer_id, epoch)
        )
    finally:
        if verdict is not None:
            verdict.close()
