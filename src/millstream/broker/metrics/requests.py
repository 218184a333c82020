"""Metrics of requests and connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from millstream.broker.counters import (
    ALL_FETCHES,
    FETCH,
    FOLLOWER_FETCH,
    ApiTimes,
    ConnectionSurvey,
    Counters,
)
from millstream.metrics.distribution import Distribution
from millstream.metrics.exposition import (
    Family,
    Sample,
    counter,
    gauge,
    label_text,
    labels,
    summary_samples,
)

MS = 1000.0
PROCESSOR = "0"  # there is one event loop
_KINDS_OF_FETCH = {FETCH: "FetchConsumer", FOLLOWER_FETCH: "FetchFollower"}
SOFTWARE_MAX = 100  # names and versions of clients' software that are shown


def request_name(api: str) -> str:
    """Kafka's name of an API, such as AddPartitionsToTxn."""
    return "".join(part.capitalize() for part in api.split("_"))


def families(counters: Counters, now: float) -> Iterator[Family]:
    """`now` is a reading of `perf_counter`."""
    prefix = "kafka_network_requestmetrics"
    meters = list(counters.meters.values())
    requests: Counter[tuple[str, int]] = Counter()
    for (name, _), meter in counters.meters.items():
        requests[request_name(meter.api), meter.version] += meter.count
        if name in _KINDS_OF_FETCH:  # besides, as in Kafka
            requests[_KINDS_OF_FETCH[name], meter.version] += meter.count
    yield counter(
        f"{prefix}_requests_total",
        "Requests by API and version.",
        ((labels(request=name, version=version), n) for (name, version), n in requests.items()),
    )
    yield counter(
        f"{prefix}_errors_total",
        "Errors in responses by API and error; a response has one per topic or partition.",
        (
            (labels(request=request_name(api), error=code.name), count)
            for (api, code), count in list(counters.errors.items())
        ),
    )
    for meter in meters:
        meter.measure_next()  # of an API whose requests have become rare, too
    counts: Counter[str] = Counter()
    for (name, _), meter in counters.meters.items():
        counts[name] += meter.count
    counts[ALL_FETCHES] = counts[FETCH] + counts[FOLLOWER_FETCH]
    timed = _timed(counters)
    total = {name: times.total for _, name, times in timed}
    local = {name: times.local for _, name, times in timed}
    remote = {name: times.remote for _, name, times in timed}
    for name, help, found in (
        ("totaltimems", "Time until the response is ready", total),
        ("localtimems", "Of that, the time in the broker's code", local),
        ("remotetimems", "Of that, the time of waiting for records, a flush or others", remote),
        (
            "throttletimems",
            "Time for which the client is throttled",
            _throttles(counters, counts, now),
        ),
    ):
        yield _summary(f"{prefix}_{name}", help, timed, counts, found, now)
    for name, help in (
        ("requestqueuetimems", "Requests are not queued here: always 0"),
        ("responsequeuetimems", "Responses are not queued here: always 0"),
        ("responsesendtimems", "Not measured: always 0"),
    ):
        yield _summary(f"{prefix}_{name}", help, timed, counts, {}, now)


def _throttles(counters: Counters, counts: Counter[str], now: float) -> Mapping[str, Distribution]:
    """By the name of the API. Requests that are not throttled are not noted one by one."""
    for name, times in counters.throttle_times.items():
        if (others := counts[name] - times.count) > 0:
            times.note(0.0, now, others)
    return counters.throttle_times


def _timed(counters: Counters) -> list[tuple[str, str, ApiTimes]]:
    """Label, name and times. Kafka has Fetch for all, and one name each for clients and brokers."""
    found = []
    if FETCH in counters.times or FOLLOWER_FETCH in counters.times:
        found.append(("Fetch", ALL_FETCHES, counters.all_fetches))
    for name, times in list(counters.times.items()):
        found.append((_KINDS_OF_FETCH.get(name) or request_name(name), name, times))
    return found


def _summary(
    name: str,
    help: str,
    timed: list[tuple[str, str, ApiTimes]],
    counts: Counter[str],
    distributions: Mapping[str, Distribution],
    now: float,
) -> Family:
    """Those without a distribution are always 0."""

    def samples() -> Iterator[Sample]:
        for label, api, _ in timed:
            text = labels(request=label)
            chosen = distributions.get(api)
            if chosen is None:
                yield f"_sum{text}", 0
                yield f"_count{text}", counts[api]
            else:
                yield from summary_samples(text, chosen, now, scale=MS, count=counts[api])

    return Family(name, "summary", f"{help}, in milliseconds.", samples())


def connection_families(survey: ConnectionSurvey, creation_rate: float) -> Iterator[Family]:
    prefix = "kafka_server_socket_server_metrics"
    yield gauge(
        f"{prefix}_connection_count",
        "Open connections.",
        (
            (labels(listener=listener, networkProcessor=PROCESSOR), count)
            for listener, count in survey.per_listener.items()
        ),
    )
    yield gauge(
        f"{prefix}_connections_software",
        "Open connections by the software of the client.",
        (
            (
                label_text(
                    {
                        "clientSoftwareName": name,
                        "clientSoftwareVersion": version,
                        "listener": listener,
                        "networkProcessor": PROCESSOR,
                    }
                ),
                count,
            )
            for (name, version, listener), count in _most_frequent(survey.per_software)
        ),
    )
    yield gauge(
        f"{prefix}_connection_creation_rate",
        "Connections accepted per second, in the last minute.",
        ((labels(networkProcessor=PROCESSOR), creation_rate),),
    )
    yield counter("millstream_connections_accepted_total", "Connections accepted.", survey.accepted)
    yield counter(
        "millstream_connections_refused_total",
        "Connections refused because of a limit.",
        survey.refused,
    )
    yield from _waiting_families(survey)


def _most_frequent(
    found: Mapping[tuple[str, str, str], int],
) -> Iterator[tuple[tuple[str, str, str], int]]:
    """Clients choose their names and versions: those beyond the limit are counted together."""
    ordered = Counter(found).most_common()
    yield from ordered[:SOFTWARE_MAX]
    others: Counter[str] = Counter()
    for (_, _, listener), count in ordered[SOFTWARE_MAX:]:
        others[listener] += count
    for listener, count in others.items():
        yield ("other", "other", listener), count


def _waiting_families(survey: ConnectionSurvey) -> Iterator[Family]:
    yield gauge(
        "kafka_network_requestchannel_requestqueuesize",
        "Connections whose next request has to wait.",
        survey.held_back,
    )
    yield gauge(
        "kafka_network_requestchannel_responsequeuesize",
        "Connections whose clients have not read all responses.",
        survey.unread,
    )
    yield gauge(
        "kafka_server_delayedoperationpurgatory_purgatorysize",
        "Requests that wait: for a flush or replicas, for records, for other members.",
        (
            (label_text({"delayedOperation": operation}), count)
            for operation, count in (
                ("Produce", survey.waiting_produces),
                ("Fetch", survey.waiting_fetches),
                ("Rebalance", survey.tasks),
            )
        ),
    )
    yield gauge(
        "millstream_queued_response_bytes",
        "Memory of responses that clients have not read.",
        survey.response_bytes,
    )
    yield gauge(
        "millstream_queued_request_bytes",
        "Memory of requests that are not handled yet.",
        survey.request_bytes,
    )
    yield gauge(
        "millstream_muted_connections",
        "Connections that are throttled by a quota or by a backlog policy.",
        survey.muted,
    )
