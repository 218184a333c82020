"""Produce, v3-13: append batches of records.

* v3: record batches (magic 2) and a transactional id. v0-2 have older formats; they are advertised,
  as in Kafka, because librdkafka before 2.8 disables compression otherwise (KAFKA-18659), but not
  supported
* v7: zstd
* v9: flexible
* v10: the current leader of a partition that this broker does not lead (KIP-951)
* v11: TRANSACTION_ABORTABLE, for a transaction that can only be aborted
* v12: transactions without AddPartitionsToTxn (KIP-890)
* v13: topic ids

acks=0 has no response; on an error the connection is closed, as in Kafka, because there is no other
way to report it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.broker.deferred import Deferred, DeferredAppend, DelayedProduce
from millstream.broker.handlers._holding import HeldTooLong, admit, hold, throttle_held
from millstream.broker.handlers._leader_hints import current_leader, endpoints_of
from millstream.broker.handlers._produce_transactions import (
    Question,
    is_verified,
    question_of,
    refusal_of,
)
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import ACKS_ALL, ACKS_LEADER, ACKS_NONE, PendingAppend
from millstream.broker.replicas.produce_templates import ProduceTemplate, refused
from millstream.broker.services import RequestContext
from millstream.errors import ApiError, ErrorCode, ProtocolError
from millstream.protocol.produce import (
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    TopicKey,
    decode_produce_request,
    encode_produce_response,
)
from millstream.protocol.wire import Buffer

if TYPE_CHECKING:
    from collections.abc import Set

    from millstream.broker.coordinators.verification import Verdict

logger = logging.getLogger("millstream.produce")

INTERNAL_TOPICS_WRITER = "__admin_client"  # the only client id that may write to them, as in Kafka
FIRST_WITH_ZSTD = 7

_VALID_ACKS = (ACKS_ALL, ACKS_LEADER, ACKS_NONE)


def produce(context: RequestContext, body: Buffer) -> bytes | Deferred | None:
    services = context.services
    services.load.last_produce_ms = services.clock.monotonic_ms()
    sender = (context.client_id, context.listener)
    template = services.produce_templates.find(context.api_version, sender, body)
    if template is not None:
        return _produce_by_template(context, template, body)
    return _produce(context, body)


def _produce_by_template(
    context: RequestContext, template: ProduceTemplate, body: Buffer
) -> bytes | Deferred | None:
    """A request that differs from an earlier one only in its records."""
    records = template.records_of(body)
    partition = template.partition
    if records is None or partition.offline_error is not None:
        return _produce(context, body)
    if partition.admission is not None and not partition.admission.is_open():
        return _produce(context, body)
    rights = context.client.rights
    if rights is not None and not rights.may_write(template.topic, template.transactional_id):
        return _produce(context, body)  # it is refused there
    try:
        pending = template.partition.append(
            records, acks=template.acks, zstd_allowed=context.api_version >= FIRST_WITH_ZSTD
        )
    except ApiError as error:
        _count_refusal(context, template.partition, error, len(records))
        if template.acks == ACKS_NONE:
            raise ProtocolError(f"a Produce with acks=0 failed: {error}") from None
        return template.encode_refusal(error)
    if template.acks == ACKS_NONE:
        return None
    if pending.is_done:
        return template.encode(pending)
    if not template.partition.leadership.is_alone:
        _limit_wait(context, pending, template.timeout_ms)
    return DeferredAppend(pending, template)


def _produce(context: RequestContext, body: Buffer) -> bytes | Deferred | None:
    """Any request, decoded in full."""
    request = decode_produce_request(body, context.api_version)
    if context.services.backlog.is_used:
        refused_topics = _refused_topics(context, request)
        held = hold(context, body, request, refused_topics, _produce_admitted)
        if held is not None:
            return held
    return _produce_admitted(context, body, request)


def _produce_admitted(
    context: RequestContext, body: Buffer, request: ProduceRequest
) -> bytes | Deferred | None:
    """A request that is not held, or no longer."""
    question = None
    if _refusal(context, request) is None:
        question = question_of(context, request, _refused_topics(context, request))
    if question is None:
        return _append(context, body, request)
    if request.acks == ACKS_NONE:
        raise ProtocolError("a Produce with acks=0 cannot begin a transaction")
    # The receive buffer is reused while this request waits.
    own_body = bytes(body)
    own_request = decode_produce_request(own_body, context.api_version)
    return _AskingFirst(context, own_body, own_request, question)


class _AskingFirst(DelayedProduce):
    """A request whose partitions have to be added to its transaction, or verified by another
    broker, and which is served after that."""

    def __init__(
        self, context: RequestContext, body: bytes, request: ProduceRequest, question: Question
    ) -> None:
        super().__init__()
        serve = self._serve(context, body, request, question)
        self._task = context.services.loop.create_task(serve)
        self.on_cancel = self._give_up

    async def _serve(
        self, context: RequestContext, body: bytes, request: ProduceRequest, question: Question
    ) -> None:
        verdict = await question.ask(context)
        try:
            answer = _append(context, body, request, verdict)
        except Exception:  # a bug: the client gets an error
            logger.exception("a transactional Produce failed")
            answer = None
        finally:
            verdict.close()
        if isinstance(answer, Deferred):
            answer.when_done(lambda done: self.complete(done.body))
        else:
            self.complete(answer)

    def _give_up(self) -> None:
        self._task.cancel()


def _append(
    context: RequestContext, body: Buffer, request: ProduceRequest, verdict: Verdict | None = None
) -> bytes | Deferred | None:
    """Append; `verdict` is the answer of the transaction's coordinator, if it was asked."""
    answer = _Answer(context)
    refusal = _refusal(context, request)
    refused_topics = _refused_topics(context, request)
    zstd_allowed = context.api_version >= FIRST_WITH_ZSTD
    for topic in request.topics:
        answer.begin_topic(topic)
        for index, records in topic.partitions:
            partition = None
            try:
                if refusal is not None:
                    raise refusal
                if topic.key in refused_topics:
                    raise ApiError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                partition = _find(context, topic.key, index)
                if partition.admission is not None:
                    admit(context, partition.admission, request.acks)
                pending = partition.append(
                    records or b"",
                    acks=request.acks,
                    zstd_allowed=zstd_allowed,
                    verified=is_verified(
                        context, request.transactional_id, partition, records, verdict
                    ),
                )
                if not partition.leadership.is_alone and not pending.is_done:
                    _limit_wait(context, pending, request.timeout_ms)
                answer.add(index, partition, pending)
            except ApiError as error:
                _count_refusal(context, partition, error, len(records or b""))
                answer.refuse(index, error)
    if answer.is_held_too_long:
        answer.throttle_ms = throttle_held(context, request.timeout_ms)
    if answer.first_error is None:
        sender = (context.client_id, context.listener)
        context.services.produce_templates.learn(
            context.api_version, sender, body, request, context.services.partitions
        )
    if request.acks == ACKS_NONE:
        if answer.first_error is not None:
            raise ProtocolError(f"a Produce with acks=0 failed: {answer.first_error}")
        return None
    return answer.encode_or_wait()


def _count_refusal(
    context: RequestContext, partition: Partition | None, error: ApiError, size_bytes: int
) -> None:
    counters = context.services.counters
    if counters is not None:
        topic = None if partition is None else partition.topic
        counters.produce_failed(topic, error.code, size_bytes)


def _limit_wait(context: RequestContext, pending: PendingAppend, timeout_ms: int) -> None:
    """Answer REQUEST_TIMED_OUT if the followers do not have the records in time. These stay in the
    log, and may be committed later."""

    def time_out() -> None:
        if not pending.is_done:
            pending.fail(
                ApiError(
                    ErrorCode.REQUEST_TIMED_OUT,
                    f"not all in-sync replicas had the records after {timeout_ms} ms",
                )
            )

    timer = context.services.loop.call_later(timeout_ms / 1000, time_out)
    pending.when_done(lambda _: timer.cancel())


def _refused_topics(context: RequestContext, request: ProduceRequest) -> Set[TopicKey]:
    """The topics to which the client may not write. An unknown id is not refused: it is answered
    as unknown."""
    rights = context.client.rights
    if rights is None:
        return frozenset()
    by_id = context.services.metadata.image.topics_by_id
    refused: set[TopicKey] = set()
    for topic in request.topics:
        key = topic.key
        name = key if isinstance(key, str) else by_id[key].name if key in by_id else None
        if name is not None and not rights.may_write(name, None):
            refused.add(key)
    return refused


def _refusal(context: RequestContext, request: ProduceRequest) -> ApiError | None:
    """The error of the whole request, if any."""
    if request.acks not in _VALID_ACKS:
        return ApiError(
            ErrorCode.INVALID_REQUIRED_ACKS, f"acks is {request.acks}; it must be -1, 0 or 1"
        )
    return refusal_of(context, request)


def _find(context: RequestContext, topic: TopicKey, index: int) -> Partition:
    partition = context.services.partitions.find(topic, index)
    if partition.is_internal and context.client_id != INTERNAL_TOPICS_WRITER:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"{partition.topic} is internal: clients cannot write to it",
        )
    return partition


class _Answer:
    """A response that completes with its last append."""

    __slots__ = (
        "_context",
        "_deferred",
        "_entries",
        "_topics",
        "_undone",
        "_waiting",
        "first_error",
        "is_held_too_long",
        "throttle_ms",
    )

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._topics: list[tuple[ProducedTopic, list[ProducedPartition]]] = []
        self._entries: list[ProducedPartition] = []
        self._waiting: list[tuple[list[ProducedPartition], int, Partition, PendingAppend]] = []
        self._undone = 0  # number of pending appends
        self._deferred: Deferred | None = None
        self.first_error: ApiError | None = None
        self.is_held_too_long = False
        self.throttle_ms = 0

    def begin_topic(self, topic: ProducedTopic) -> None:
        self._entries = []
        self._topics.append((topic, self._entries))

    def refuse(self, index: int, error: ApiError) -> None:
        self.first_error = self.first_error or error
        self.is_held_too_long |= isinstance(error, HeldTooLong)
        self._entries.append(refused(index, error))

    def add(self, index: int, partition: Partition, pending: PendingAppend) -> None:
        if not pending.is_done:
            self._waiting.append((self._entries, len(self._entries), partition, pending))
        self._entries.append(_produced(index, partition, pending))

    def encode_or_wait(self) -> bytes | Deferred:
        if not self._waiting:
            return self._encode()
        self._deferred = Deferred()
        deferred = self._deferred
        self._undone = len(self._waiting)
        for *_, pending in self._waiting:
            pending.when_done(self._one_is_done)
        return deferred

    def _one_is_done(self, _: PendingAppend) -> None:
        self._undone -= 1
        if self._undone:
            return
        for entries, position, partition, pending in self._waiting:
            index = entries[position].partition
            entries[position] = _produced(index, partition, pending)
        assert self._deferred is not None
        self._deferred.complete(self._encode())

    def _encode(self) -> bytes:
        leaders = self._add_leaders()
        topics = [(topic.encoded, entries) for topic, entries in self._topics]
        endpoints = endpoints_of(self._context, leaders) if leaders else ()
        version = self._context.api_version
        return encode_produce_response(version, topics, endpoints, self.throttle_ms)

    def _add_leaders(self) -> set[int]:
        """Name the leaders of partitions that this broker does not lead."""
        leaders = set()
        for topic, entries in self._topics:
            for position, entry in enumerate(entries):
                if entry.error is not ErrorCode.NOT_LEADER_OR_FOLLOWER:
                    continue
                leader = current_leader(self._context, topic.key, entry.partition)
                if leader is not None:
                    entries[position] = entry._replace(current_leader=leader)
                    leaders.add(leader[0])
        return leaders


def _produced(index: int, partition: Partition, pending: PendingAppend) -> ProducedPartition:
    if pending.error is not None:
        return refused(index, pending.error)
    return ProducedPartition(
        index,
        ErrorCode.NONE,
        pending.first_offset,
        pending.log_append_time_ms,
        partition.log_start_offset,
    )
