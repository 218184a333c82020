"""Names and labels of requests and connections."""

from __future__ import annotations

from time import perf_counter

from millstream.broker.counters import ConnectionSurvey, Counters
from millstream.broker.metrics import requests
from millstream.errors import ErrorCode
from millstream.metrics.exposition import render
from millstream.protocol.apis import APIS
from tests.broker.metrics.scraping import Metrics

NETWORK = "kafka_network_requestmetrics"


def test_requests_have_kafkas_names_by_version() -> None:
    counters = Counters()
    for key, version, count in ((0, 9, 5), (0, 13, 7), (24, 3, 1)):
        counters.meter(APIS[key], version).count = count
    counters.errors["add_partitions_to_txn", ErrorCode.INVALID_TXN_STATE] = 2
    found = Metrics("".join(render(requests.families(counters, now=0.0))))
    assert found.value(f"{NETWORK}_requests_total", request="Produce", version=9) == 5
    assert found.value(f"{NETWORK}_requests_total", request="Produce", version=13) == 7
    assert found.value(f"{NETWORK}_totaltimems_count", request="Produce") == 12
    assert found.value(f"{NETWORK}_requestqueuetimems_count", request="Produce") == 12
    error = {"request": "AddPartitionsToTxn", "error": "INVALID_TXN_STATE"}
    assert found.value(f"{NETWORK}_errors_total", **error) == 2


def test_fetches_of_consumers_and_followers_are_one_api_with_two_times() -> None:
    counters = Counters()
    counters.meter(APIS[1], 17).count = 3
    counters.meter(APIS[1], 17, of_broker=True).count = 4
    for times, seconds in zip(counters.times.values(), (1.0, 2.0), strict=True):
        times.note(seconds, seconds, 0.0, 1)
    found = Metrics("".join(render(requests.families(counters, now=0.0))))
    assert found.value(f"{NETWORK}_requests_total", request="Fetch", version=17) == 7
    assert found.value(f"{NETWORK}_requests_total", request="FetchConsumer", version=17) == 3
    assert found.value(f"{NETWORK}_totaltimems_count", request="FetchConsumer") == 3
    assert found.value(f"{NETWORK}_totaltimems_count", request="FetchFollower") == 4
    assert found.value(f"{NETWORK}_totaltimems_count", request="Fetch") == 7
    assert found.value(f"{NETWORK}_totaltimems_sum", request="Fetch") == 3000


def test_throttle_times_cover_requests_that_were_not_throttled() -> None:
    counters = Counters()
    for key in (0, 1, 3):
        counters.meter(APIS[key], 9).count = 10
    counters.throttled("produce", 2000)
    counters.throttled("fetch", 500)
    found = Metrics("".join(render(requests.families(counters, perf_counter()))))
    name = f"{NETWORK}_throttletimems"
    for api, ms in (("Produce", 2000), ("Fetch", 500), ("FetchConsumer", 500), ("Metadata", 0)):
        assert found.value(f"{name}_sum", request=api) == ms
        assert found.value(f"{name}_count", request=api) == 10
    assert found.value(name, request="Produce", quantile=0.5) == 0
    assert found.value(name, request="Produce", quantile=0.99) == 2000


def test_rare_software_is_counted_together() -> None:
    names = {(f"x{it}", "1", "PLAINTEXT"): 1 for it in range(requests.SOFTWARE_MAX + 4)}
    often = ("often", "1", "PLAINTEXT")
    found = dict(requests._most_frequent(names | {often: 9}))
    assert len(found) == requests.SOFTWARE_MAX + 1
    assert (found[often], found["other", "other", "PLAINTEXT"]) == (9, 5)


def test_connections_are_counted_by_listener_and_software() -> None:
    survey = ConnectionSurvey(
        per_listener={"PLAINTEXT": 3},
        per_software={("librdkafka", "2.16.0", "PLAINTEXT"): 2},
        accepted=9,
        refused=1,
        held_back=1,
        unread=0,
        muted=0,
        waiting_produces=4,
        waiting_fetches=2,
        tasks=1,
        response_bytes=10,
        request_bytes=20,
    )
    found = Metrics("".join(render(requests.connection_families(survey, 1.5))))
    prefix = "kafka_server_socket_server_metrics"
    at = {"listener": "PLAINTEXT", "networkProcessor": 0}
    assert found.value(f"{prefix}_connection_count", **at) == 3
    software = {"clientSoftwareName": "librdkafka", "clientSoftwareVersion": "2.16.0"}
    assert found.value(f"{prefix}_connections_software", **software, **at) == 2
    assert found.value(f"{prefix}_connection_creation_rate", networkProcessor=0) == 1.5
    waiting = "kafka_server_delayedoperationpurgatory_purgatorysize"
    assert found.value(waiting, delayedOperation="Fetch") == 2
