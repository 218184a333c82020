"""Counters of requests and errors, for metrics: created only if metrics are served.

Requests are counted exactly. Their duration is measured for a sample: of an API that gets more than
a hundred requests per second, every second, fourth, ... up to every 256th. A sampled request counts
for all that were skipped, so sums stay correct on average. One request costs the broker some ten
microseconds, and two readings of the clock with their bookkeeping two more.

What other parts count at no measurable cost (appended records, say) is in those parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.broker.deferred import Buffers, Deferred
from millstream.errors import ErrorCode
from millstream.metrics.distribution import Distribution, growing_bounds

if TYPE_CHECKING:
    from millstream.protocol.apis import Api

SAMPLE_EVERY_MAX = 256
RARE_SECONDS = 0.01  # requests that are further apart are all measured
ERROR_NODES_MAX = 2_000  # parts of one response that are searched for errors

FETCH = "fetch"
FOLLOWER_FETCH = "fetch_follower"
ALL_FETCHES = "all fetches"

THROTTLES = (0.0, *growing_bounds(1e-3, 14))  # most requests are not throttled; 1 ms to 16 s

# Errors by which clients learn where to read, and from where: in Kafka they are no failed fetches.
EXPECTED_OF_FETCH = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_OUT_OF_RANGE,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

# Errors of appends that are no failed produce requests in Kafka.
EXPECTED_OF_PRODUCE = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)

_NONE = ErrorCode.NONE
_CODES = {int(code): code for code in ErrorCode}


class ApiTimes:
    """How long requests of one API take, in seconds: until answered; in the handler; waiting.

    `part_of`: times that include these."""

    __slots__ = ("_part_of", "local", "remote", "total")

    def __init__(self, part_of: ApiTimes | None = None) -> None:
        self._part_of = part_of
        self.total = Distribution()
        self.local = Distribution()
        self.remote = Distribution()

    def note(self, local: float, total: float, now: float, weight: int) -> None:
        self.total.note(total, now, weight)
        self.local.note(local, now, weight)
        self.remote.note(max(total - local, 0.0), now, weight)
        if self._part_of is not None:
            self._part_of.note(local, total, now, weight)


class RequestMeter:
    """Requests of one API and version. `Connection` increments `count`, and measures a request
    when that reaches `timed_at`."""

    __slots__ = (
        "_counters",
        "_every",
        "_timed",
        "_timed_count",
        "_times",
        "api",
        "count",
        "timed_at",
        "version",
    )

    def __init__(self, counters: Counters, api: str, version: int, times: ApiTimes) -> None:
        self._counters = counters
        self._times = times
        self._every = 1
        self._timed = float("-inf")  # when a request was last measured
        self._timed_count = 0  # `count` at that time
        self.api = api
        self.version = version
        self.count = 0
        self.timed_at = 1

    def measured(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """The handler for a request that is measured."""

        def handle(*arguments: Any) -> Any:
            started = perf_counter()
            weight = self._next_sample(started)
            answer = handler(*arguments)
            now = perf_counter()
            local = now - started
            if isinstance(answer, Deferred):
                answer.when_done(lambda _: self._note(started, local, weight))
            else:
                self._times.note(local, local, now, weight)
            return answer

        return handle

    def timing(
        self, complete: Callable[[Buffers | None], None]
    ) -> Callable[[Buffers | None], None]:
        """The callback of a request that runs as a task; such are all measured."""
        started = perf_counter()

        def ended(body: Buffers | None) -> None:
            self._note(started, 0.0, 1)
            complete(body)

        return ended

    def measure_next(self) -> None:
        """Measure the next request, however many came lately."""
        self._every = 1
        self.timed_at = self.count + 1

    def errors_in(self, fields: Mapping[str, Any]) -> None:
        """Count the errors of a response."""
        for code in error_codes(fields):
            self._counters.errors[self.api, code] += 1

    def _next_sample(self, now: float) -> int:
        """Choose which request is measured next; returns for how many this one counts: itself and
        those since the last one that was measured."""
        weight = max(self.count - self._timed_count, 1)
        if now - self._timed > RARE_SECONDS * weight:
            self._every = 1
        elif self._every < SAMPLE_EVERY_MAX:
            self._every *= 2
        self._timed = now
        self._timed_count = self.count
        self.timed_at = self.count + self._every
        return weight

    def _note(self, started: float, local: float, weight: int) -> None:
        now = perf_counter()
        self._times.note(local, now - started, now, weight)


def error_codes(fields: Any) -> list[ErrorCode]:
    """The error codes in the fields of a response, at any depth, without those of success."""
    found: list[ErrorCode] = []
    waiting: list[Any] = [fields]
    seen = 0
    while waiting and seen < ERROR_NODES_MAX:
        seen += 1
        part = waiting.pop()
        if isinstance(part, Mapping):
            code = part.get("error_code", _NONE)
            if code is not _NONE and int(code) != 0:
                found.append(_CODES.get(int(code), ErrorCode.UNKNOWN_SERVER_ERROR))
            waiting.extend(it for it in part.values() if isinstance(it, (list, tuple, Mapping)))
        else:
            waiting.extend(it for it in part if isinstance(it, (list, tuple, Mapping)))
    return found


class TopicFailures:
    """Requests of clients for one topic that failed."""

    __slots__ = ("failed_fetches", "failed_produces", "refused_appends", "rejected_bytes")

    def __init__(self) -> None:
        self.refused_appends = 0  # for whatever reason
        self.failed_produces = 0
        self.failed_fetches = 0
        self.rejected_bytes = 0


class Counters:
    """All counters of a broker that serves metrics."""

    def __init__(self) -> None:
        self.meters: dict[tuple[str, int], RequestMeter] = {}  # by name and version
        self.times: dict[str, ApiTimes] = {}  # by the name of the API
        self.all_fetches = ApiTimes()  # those of clients and of followers
        self.errors: Counter[tuple[str, ErrorCode]] = Counter()  # by the name of the API
        self.topics: dict[str, TopicFailures] = {}  # those with failures
        self.all_topics = TopicFailures()
        self.throttle_times: dict[str, Distribution] = {}  # by the name of the API, in seconds

    def throttled(self, api: str, ms: int) -> None:
        """A request was answered with this throttle time."""
        for name in (api, ALL_FETCHES) if api in (FETCH, FOLLOWER_FETCH) else (api,):
            times = self.throttle_times.get(name)
            if times is None:
                times = self.throttle_times[name] = Distribution(THROTTLES)
            times.note(ms / 1000, perf_counter())

    def meter(self, api: Api, version: int, *, of_broker: bool = False) -> RequestMeter:
        """`of_broker`: the requests of another broker; its fetches are those of a follower."""
        name = FOLLOWER_FETCH if of_broker and api.name == FETCH else api.name
        meter = self.meters.get((name, version))
        if meter is None:
            part_of = self.all_fetches if api.name == FETCH else None
            times = self.times.setdefault(name, ApiTimes(part_of))
            meter = self.meters[name, version] = RequestMeter(self, api.name, version, times)
        return meter

    def produce_failed(self, topic: str | None, code: ErrorCode, rejected_bytes: int = 0) -> None:
        """An append was refused; of no topic if there is no such partition."""
        self.errors["produce", code] += 1
        for failures in self._of(topic):
            failures.refused_appends += topic is not None
            failures.failed_produces += code not in EXPECTED_OF_PRODUCE
            if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
                failures.rejected_bytes += rejected_bytes

    def fetch_failed(self, topic: str | None, code: ErrorCode) -> None:
        self.errors["fetch", code] += 1
        if code in EXPECTED_OF_FETCH:
            return
        for failures in self._of(topic):
            failures.failed_fetches += 1

    def _of(self, topic: str | None) -> tuple[TopicFailures, ...]:
        if topic is None:
            return (self.all_topics,)
        failures = self.topics.get(topic)
        if failures is None:
            failures = self.topics[topic] = TopicFailures()
        return failures, self.all_topics

    def topic_is_gone(self, topic: str) -> None:
        self.topics.pop(topic, None)


class ConnectionSurvey(NamedTuple):
    """The connections of a broker at the time of a scrape, and counters since its start."""

    per_listener: Mapping[str, int]
    per_software: Mapping[tuple[str, str, str], int]  # name, version and listener
    accepted: int
    refused: int
    held_back: int
    unread: int
    muted: int
    waiting_produces: int
    waiting_fetches: int
    tasks: int
    response_bytes: int
    request_bytes: int
