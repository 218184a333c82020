"""Produce requests to partitions whose consumers are behind (`millstream.backlog.policy`).

`hold`: the request waits before anything of it is appended, and is answered late. It delays the
later requests of its connection, so that order is kept, and what the client sends meanwhile stays
in its socket. If it has waited for as long as it may (`backlog/budget.py`), it gets
NOT_ENOUGH_REPLICAS, which all clients retry, and a throttle time, for which the connection is also
muted because not all clients wait by themselves. So does a request that cannot wait because those
that do take a quarter of the memory for requests: the rest is for other topics. acks=0 has no
answer that could be late: it is appended, and the connection is muted. `reject`: POLICY_VIOLATION,
which no client retries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from millstream.broker.deferred import Deferred, DelayedProduce
from millstream.broker.handlers._quotas import throttle
from millstream.broker.replicas.pending import ACKS_NONE
from millstream.broker.services import RequestContext
from millstream.errors import ApiError
from millstream.protocol.produce import ProduceRequest, TopicKey, decode_produce_request
from millstream.protocol.wire import Buffer

if TYPE_CHECKING:
    from collections.abc import Set

    from millstream.broker.backlog.budget import HoldBudget
    from millstream.broker.replicas.admission import Admission

logger = logging.getLogger("millstream.produce")

MUTE_MS = 1_000  # of a producer with acks=0, for each request
MEMORY_SHARE = 4  # of queued.max.request.bytes, held requests take at most one part of so many

# Serves a request that is not held.
Proceed: TypeAlias = Callable[[RequestContext, Buffer, ProduceRequest], bytes | Deferred | None]


def hold(
    context: RequestContext,
    body: Buffer,
    request: ProduceRequest,
    refused_topics: Set[TopicKey],
    proceed: Proceed,
) -> Deferred | None:
    """The held request; None if it need not, or must not, be held. Topics to which the client may
    not write hold nothing."""
    if request.acks == ACKS_NONE:
        return None
    closed = _closed(context, request, refused_topics)
    if not closed:
        return None
    budget = _budget(context)
    now_ms = context.services.clock.monotonic_ms()
    left_ms = budget.left_ms(request.timeout_ms, now_ms)
    if not left_ms or not _has_memory(context, len(body)):
        budget.spent(0, now_ms)
        return None
    return HeldRequest(context, bytes(body), closed, proceed, budget, left_ms)


def _budget(context: RequestContext) -> HoldBudget:
    budget = context.client.hold_budget
    if budget is None:
        from millstream.broker.backlog.budget import HoldBudget

        budget = context.client.hold_budget = HoldBudget()
    return budget


def _has_memory(context: RequestContext, size_bytes: int) -> bool:
    services = context.services
    limit = services.config.queued_request_bytes_max // MEMORY_SHARE
    return services.backlog.held_bytes + size_bytes <= limit


def admit(context: RequestContext, admission: Admission, acks: int) -> None:
    """Raise the `ApiError` of a producer that may not write now."""
    if admission.is_open():
        return
    if admission.holds and acks == ACKS_NONE:
        context.client.mute(MUTE_MS)
        return
    refusal = admission.refusal()
    raise HeldTooLong(refusal.code, refusal.message) if admission.holds else refusal


class HeldTooLong(ApiError):
    """A partition still holds producers, but the request may not wait any longer."""


def throttle_held(context: RequestContext, timeout_ms: int) -> int:
    """Mute the client of a request that was held too long; returns the throttle time (ms)."""
    throttle_ms = _budget(context).throttle(timeout_ms, context.services.clock.monotonic_ms())
    throttle(context, "produce", throttle_ms)
    return throttle_ms


def _closed(
    context: RequestContext, request: ProduceRequest, refused_topics: Set[TopicKey]
) -> list[Admission]:
    """What holds the request."""
    closed = []
    for topic in request.topics:
        if topic.key in refused_topics:
            continue
        for index, _ in topic.partitions:
            try:
                partition = context.services.partitions.find(topic.key, index)
            except ApiError:  # answered when its turn comes
                continue
            admission = partition.admission
            if admission is not None and admission.holds and not admission.is_open():
                closed.append(admission)
    return closed


class HeldRequest(DelayedProduce):
    """Waits until all partitions of the request admit it, or for `left_ms`."""

    def __init__(
        self,
        context: RequestContext,
        body: bytes,
        admissions: list[Admission],
        proceed: Proceed,
        budget: HoldBudget,
        left_ms: int,
    ) -> None:
        super().__init__()
        self._context = context
        self._body = body
        self._admissions = admissions
        self._proceed = proceed
        self._budget = budget
        self._since_ms = context.services.clock.monotonic_ms()
        context.services.backlog.held_bytes += len(body)
        self._waits_for = admissions[0]
        self._answer: Deferred | None = None
        self._timer = context.services.loop.call_later(left_ms / 1000, self._go_on)
        self._waits_for.when_open(self._opened)
        self.on_cancel = self._cancelled

    def _opened(self) -> None:
        """One of them has opened, and may have closed again before others opened."""
        for admission in self._admissions:
            if not admission.is_open():
                self._waits_for = admission
                admission.when_open(self._opened)
                return
        self._go_on()

    def _go_on(self) -> None:
        self._stop_waiting()
        context = self._context
        try:
            request = decode_produce_request(self._body, context.api_version)
            answer = self._proceed(context, self._body, request)
        except Exception:  # a bug: the connection is closed
            logger.exception("a Produce request that was held failed")
            answer = None
        if isinstance(answer, Deferred):
            self._answer = answer
            answer.when_done(lambda done: self.complete(done.body))
        else:
            self.complete(answer)

    def _stop_waiting(self) -> None:
        self._timer.cancel()
        self._context.services.backlog.held_bytes -= len(self._body)
        self._waits_for.forget(self._opened)
        now_ms = self._context.services.clock.monotonic_ms()
        held_ms = now_ms - self._since_ms
        self._budget.spent(held_ms, now_ms)
        self._waits_for.held(held_ms / 1000)

    def _cancelled(self) -> None:
        """The client is gone: nothing was appended, unless the answer waits for a flush."""
        if self._answer is not None:
            self._answer.cancel()
        else:
            self._stop_waiting()
