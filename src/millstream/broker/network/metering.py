"""Counting what the requests of a client take of its quotas.

A request is handled first and counted then, as in Kafka: it is answered at once, with the time for
which the client is throttled, and the connection is muted for that time, because many clients do
not wait by themselves. What is counted:

    Produce       the bytes of the request
    ShareFetch    the bytes of the response
    all           the time for which the request has occupied the event loop

A client that is far from its quota is counted every few requests, because counting each of them
would take a tenth of the time of a small request: what is unrecorded may reach a `lease`.

Fetch counts its records itself (`handlers/fetch.py`): a response that would exceed the quota is not
sent. Requests of other brokers are not counted.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, TypeAlias

from millstream.broker.deferred import Buffers
from millstream.broker.handlers._quotas import meters_of, throttle
from millstream.broker.network.throttle_time import Answer, after, set_throttle_time
from millstream.broker.quotas.clients import PERCENT_PER_NS, ClientQuotas, Meters, Usage

if TYPE_CHECKING:
    from millstream.broker.services import RequestContext
    from millstream.clock import Clock
    from millstream.protocol.apis import Api

Mute: TypeAlias = Callable[[int], None]
Complete: TypeAlias = Callable[[Buffers | None], None]

# Sent by brokers only, or in Kafka exempt as well.
EXEMPT = frozenset(
    {
        "delete_share_group_state",
        "initialize_share_group_state",
        "read_share_group_state",
        "read_share_group_state_summary",
        "write_share_group_state",
        "write_txn_markers",
    }
)


class QuotaMeter:
    """Counts the requests of one API and version from one client on one connection."""

    __slots__ = (
        "_api",
        "_busy_lease_ns",
        "_busy_ns",
        "_byte_lease",
        "_clock",
        "_mute",
        "_produce",
        "_request",
        "_share_fetch",
        "_version",
        "lease",
        "unrecorded",
    )

    def __init__(self, api: Api, version: int, meters: Meters, clock: Clock, mute: Mute) -> None:
        self._api = api
        self._version = version
        self._clock = clock
        self._mute = mute
        self._request = meters.request
        self._produce = meters.produce if api.name == "produce" else None
        self._share_fetch = meters.fetch if api.name == "share_fetch" else None
        self._busy_ns = 0  # not recorded yet
        self._busy_lease_ns = 0.0
        self._byte_lease = 0.0
        self.lease = 0.0  # requests need not come here before `unrecorded` reaches it
        self.unrecorded = 0  # bytes

    @property
    def is_needed(self) -> bool:
        return bool(self._request or self._produce or self._share_fetch)

    def answer(self, handle: Callable[[memoryview], Answer], body: memoryview) -> Answer:
        """Handle a request, count it with what is unrecorded, and mute the connection if that was
        too much."""
        if self._request is None:
            answer = handle(body)
            throttle_ms = 0
        else:
            started_ns = perf_counter_ns()
            answer = handle(body)
            self._busy_ns += perf_counter_ns() - started_ns
            throttle_ms = 0
            if self._busy_ns >= self._busy_lease_ns:
                throttle_ms = self._record_time(self._request, self._busy_ns)
                self._busy_lease_ns = self._request.rate.lease / PERCENT_PER_NS
                self._busy_ns = 0
        if self._produce is not None and self.unrecorded >= self._byte_lease:
            produced_ms = self._produce.record(self.unrecorded, self._clock.monotonic_ms())
            throttle_ms = max(throttle_ms, produced_ms)
            self._byte_lease = self._produce.rate.lease
            if self._request is None:  # otherwise each request is timed
                self.lease = self._byte_lease
            self.unrecorded = 0
        if throttle_ms:
            answer = self._throttle(answer, throttle_ms)
        if self._share_fetch is not None:
            return after(answer, partial(self._count_response, self._share_fetch))
        return answer

    async def run(
        self, coroutine: Callable[[Complete], Coroutine[Any, Any, None]], complete: Complete
    ) -> None:
        """Run a handler that is a coroutine and completes its response by a call."""
        steps = TimedSteps()

        def count(body: Buffers | None) -> None:
            if self._request is not None and body is not None:
                throttle_ms = self._record_time(self._request, steps.busy_ns)
                if throttle_ms:
                    self._mute(throttle_ms)
                    body = set_throttle_time(self._api, self._version, body, throttle_ms)
            complete(body)

        await steps.run(coroutine(count))

    def _record_time(self, usage: Usage, busy_ns: int) -> int:
        return usage.record(busy_ns * PERCENT_PER_NS, self._clock.monotonic_ms())

    def _throttle(self, answer: Answer, throttle_ms: int) -> Answer:
        self._mute(throttle_ms)
        return after(
            answer, lambda body: set_throttle_time(self._api, self._version, body, throttle_ms)
        )

    def _count_response(self, usage: Usage, body: Buffers) -> Buffers:
        size = len(body) if isinstance(body, bytes) else sum(map(len, body))
        throttle_ms = usage.record(size, self._clock.monotonic_ms())
        if not throttle_ms:
            return body
        self._mute(throttle_ms)
        return set_throttle_time(self._api, self._version, body, throttle_ms)


def meter_of(api: Api, context: RequestContext, quotas: ClientQuotas) -> QuotaMeter | None:
    """What counts the requests of a client for an API; None if nothing of them counts."""
    meters = None if api.name in EXEMPT else meters_of(context, quotas)
    if meters is None:
        return None
    meter = QuotaMeter(
        api,
        context.api_version,
        meters,
        context.services.clock,
        partial(throttle, context, api.name),
    )
    return meter if meter.is_needed else None


class TimedSteps:
    """Measures for how long a coroutine occupies the event loop."""

    def __init__(self) -> None:
        self._busy_ns = 0
        self._started_ns = 0  # of the step under way

    @property
    def busy_ns(self) -> int:
        step_ns = perf_counter_ns() - self._started_ns if self._started_ns else 0
        return self._busy_ns + step_ns

    @types.coroutine
    def run(self, coroutine: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        resume: Callable[[], Any] = partial(coroutine.send, None)
        while True:
            self._started_ns = perf_counter_ns()
            try:
                waits_for = resume()
            except StopIteration:
                return
            finally:
                self._busy_ns = self.busy_ns
                self._started_ns = 0
            try:
                resume = partial(coroutine.send, (yield waits_for))
            except BaseException as error:  # noqa: BLE001  # it is for the coroutine
                resume = partial(coroutine.throw, error)
