"""The quotas of a broker's clients: what each has used, and how long it is throttled for.

Exists only while the cluster has quotas. A `Usage` counts for all clients that share a quota
(`limits.py`). Connections keep the ones that apply to them; besides, a usage is kept for a while
after its last client has gone, so that nobody gets a new allowance by connecting again.

Quotas hold per broker, as in Kafka. Workers of one host are one broker to those who set quotas, so
each of N workers enforces an N-th of a quota.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappush, heapreplace
from typing import NamedTuple
from weakref import WeakValueDictionary

from millstream.broker.quotas.limits import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    Limit,
    Limits,
)
from millstream.broker.quotas.rates import SampledRate, Throttles, TokenBucket, Window

USAGES_MAX = 50_000  # of a kind; further clients share one, for anybody can make up client ids
ID_LENGTH_MAX = 255  # clients with longer ids share one, too
METRICS_MAX = 5_000
USAGES_AT_ONCE = 1_000  # steps of some 0.5 ms
METRICS_AT_ONCE = 100
OTHERS = "<others>"
KEPT_MS = 60_000  # for which a usage is kept after the last use, if the window is not longer
PERCENT_PER_NS = 100 / 1_000_000_000

UsageKey = tuple[str, str, str]
"""The key of the quota, the user and the client id; empty: shared by all."""


class Usage:
    """What the clients that share a quota have used, and for how long they were throttled."""

    __slots__ = (
        "__weakref__",
        "client_id",
        "key",
        "rate",
        "throttle_ms_max",
        "throttles",
        "used_ms",
        "user",
    )

    def __init__(self, key: UsageKey, window: Window, bound: float, throttle_ms_max: int) -> None:
        self.key, self.user, self.client_id = key
        self.rate = SampledRate(window, bound)
        self.throttle_ms_max = throttle_ms_max
        self.throttles = Throttles(window)
        self.used_ms = 0  # the time of the last use

    def record(self, amount: float, now_ms: int) -> int:
        """Count; returns for how many ms to throttle the client now."""
        self.used_ms = now_ms
        throttle_ms = self.rate.record(amount, now_ms)
        return self._throttled(throttle_ms, now_ms) if throttle_ms else 0

    def accept(self, amount: float, now_ms: int) -> int:
        """Count, unless that would exceed the quota: returns for how many ms to throttle the client
        instead. What comes first in a window is always accepted, however large: otherwise a batch
        that is larger than the quota of a window could never be fetched."""
        self.used_ms = now_ms
        is_first = self.rate.is_empty(now_ms)
        throttle_ms = self.rate.record(amount, now_ms)
        if not throttle_ms or is_first:
            return 0
        self.rate.record(-amount, now_ms)
        return self._throttled(throttle_ms, now_ms)

    def excess_ms(self, now_ms: int) -> int:
        """For how many ms to throttle the client that has exceeded the quota before."""
        throttle_ms = self.rate.throttle_ms(now_ms)
        return self._throttled(throttle_ms, now_ms) if throttle_ms else 0

    def _throttled(self, throttle_ms: int, now_ms: int) -> int:
        throttle_ms = min(throttle_ms, self.throttle_ms_max)
        self.throttles.record(throttle_ms, now_ms)
        return throttle_ms


class MutationUsage:
    """What the clients that share a controller_mutation_rate have changed."""

    __slots__ = (
        "__weakref__",
        "bucket",
        "client_id",
        "throttles",
        "used_ms",
        "user",
    )

    def __init__(self, user: str, client_id: str, window: Window, bucket: TokenBucket) -> None:
        self.user = user
        self.client_id = client_id
        self.bucket = bucket
        self.throttles = Throttles(window)
        self.used_ms = 0


class Meters(NamedTuple):
    """What is counted of the requests of one client."""

    produce: Usage | None
    fetch: Usage | None
    request: Usage | None


class QuotaMetric(NamedTuple):
    """The state of one usage, for metrics."""

    key: str
    user: str
    client_id: str
    bound: float
    value: float  # a rate per second; of controller mutations, the tokens that are left
    throttled_count: int
    throttled_ms: int  # in all
    throttle_ms: float  # the average within the window


class ClientQuotas:
    """See the module."""

    def __init__(
        self,
        limits: Limits,
        *,
        window: Window,
        controller_window: Window,
        throttle_ms_max: int,
    ) -> None:
        """`throttle_ms_max` bounds every throttling at once."""
        self.limits = limits
        self._window = window
        self._controller_window = controller_window
        self._throttle_ms_max = throttle_ms_max
        self._kept_ms = max(KEPT_MS, window.samples * window.sample_ms)
        # All that are used by somebody, and those used recently.
        self._usages: WeakValueDictionary[UsageKey, Usage] = WeakValueDictionary()
        self._recent: dict[UsageKey, Usage] = {}
        self._mutations: dict[tuple[str, str], MutationUsage] = {}
        self._connections: dict[str, Usage] = {}

    def meters(self, user: str, client_id: str, now_ms: int) -> Meters | None:
        """What to count of a client's requests; None: nothing."""
        meters = Meters(
            self.usage(PRODUCER_BYTE_RATE, user, client_id, now_ms),
            self.usage(CONSUMER_BYTE_RATE, user, client_id, now_ms),
            self.usage(REQUEST_PERCENTAGE, user, client_id, now_ms),
        )
        return meters if any(meters) else None

    def usage(self, key: str, user: str, client_id: str, now_ms: int) -> Usage | None:
        """The usage of a byte rate or of request time, if the client has such a quota."""
        limit = self.limits.find(key, user, client_id)
        if limit is None:
            return None
        usage_key = (key, limit.user, limit.client_id)
        usage = self._usages.get(usage_key)
        if usage is None and _is_shared(limit, len(self._usages)):
            usage_key = (key, limit.user, OTHERS)
            usage = self._usages.get(usage_key)
        if usage is None:
            longest = self._throttle_ms_max
            if key == REQUEST_PERCENTAGE:  # as in Kafka
                longest = min(longest, self._window.sample_ms)
            usage = Usage(usage_key, self._window, limit.bound, longest)
            self._usages[usage_key] = usage
        elif usage.rate.bound != limit.bound:
            usage.rate.set_bound(limit.bound)
        usage.used_ms = now_ms
        self._recent[usage_key] = usage
        return usage

    def mutations(self, user: str, client_id: str, now_ms: int) -> MutationUsage | None:
        """What a client has changed, if there is a quota for that."""
        limit = self.limits.find(CONTROLLER_MUTATION_RATE, user, client_id)
        if limit is None:
            return None
        sharing = (limit.user, limit.client_id)
        usage = self._mutations.get(sharing)
        if usage is None and _is_shared(limit, len(self._mutations)):
            sharing = (limit.user, OTHERS)
            usage = self._mutations.get(sharing)
        if usage is None:
            bucket = TokenBucket(self._controller_window, limit.bound, now_ms)
            usage = MutationUsage(*sharing, self._controller_window, bucket)
            self._mutations[sharing] = usage
        elif usage.bucket.bound != limit.bound:
            usage.bucket.set_bound(limit.bound, now_ms)
        usage.used_ms = now_ms
        return usage

    def connection_ms(self, address: str, now_ms: int) -> int:
        """Count a connection; returns after how many ms to close it, if it is one too many."""
        bound = self.limits.find_ip(address)
        if bound is None:
            return 0
        usage = self._connections.get(address)
        if usage is None:
            key = (CONNECTION_CREATION_RATE, "", address)
            usage = Usage(key, self._window, bound, self._window.sample_ms)
            self._connections[address] = usage
        elif usage.rate.bound != bound:
            usage.rate.set_bound(bound)
        throttle_ms = usage.record(1, now_ms)
        if throttle_ms:
            usage.rate.record(-1, now_ms)
        return throttle_ms

    def expire(self, now_ms: int) -> None:
        """Forget clients that have gone."""
        oldest_ms = now_ms - self._kept_ms
        self._recent = {
            key: usage for key, usage in self._usages.items() if usage.used_ms >= oldest_ms
        }
        self._mutations = {
            key: usage for key, usage in self._mutations.items() if usage.used_ms >= oldest_ms
        }
        self._connections = {
            address: usage
            for address, usage in self._connections.items()
            if not usage.rate.is_empty(now_ms)
        }

    def metrics(self, now_ms: int) -> Iterator[QuotaMetric | None]:
        """The state of the clients that have a quota; of too many, of those that were throttled
        most often. Yields None after each short step: other work may be done then."""
        busiest: list[tuple[int, int, Usage | MutationUsage]] = []  # a heap
        for number, usage in enumerate(self._all_usages()):
            ranked = (usage.throttles.count, -number, usage)
            if len(busiest) < METRICS_MAX:
                heappush(busiest, ranked)
            elif ranked > busiest[0]:
                heapreplace(busiest, ranked)
            if number % USAGES_AT_ONCE == 0:
                yield None
        busiest.sort(reverse=True)
        for number, (*_, usage) in enumerate(busiest):
            yield _metric(usage, now_ms)
            if number % METRICS_AT_ONCE == 0:
                yield None

    def _all_usages(self) -> Iterator[Usage | MutationUsage]:
        """Those that there are now; clients may come and go meanwhile."""
        for found in self._usages.valuerefs():
            usage = found()
            if usage is not None:
                yield usage
        yield from list(self._mutations.values())
        yield from list(self._connections.values())

    def __len__(self) -> int:
        """How many usages are kept."""
        return len(self._usages) + len(self._mutations) + len(self._connections)


def _metric(usage: Usage | MutationUsage, now_ms: int) -> QuotaMetric:
    if isinstance(usage, Usage):
        key, bound, value = usage.key, usage.rate.bound, usage.rate.per_second(now_ms)
    else:
        key = CONTROLLER_MUTATION_RATE
        bound, value = usage.bucket.bound, usage.bucket.tokens(now_ms)
    throttles = usage.throttles
    return QuotaMetric(
        *(key, usage.user, usage.client_id, bound, value),
        *(throttles.count, throttles.total_ms, throttles.average_ms(now_ms)),
    )


def _is_shared(limit: Limit, usages: int) -> bool:
    """Whether a new client that has a default shares one usage with others like it."""
    return limit.is_default and (usages >= USAGES_MAX or len(limit.client_id) > ID_LENGTH_MAX)
