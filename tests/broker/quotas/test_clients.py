"""The usages of a broker's clients: shared, throttled, forgotten."""

from __future__ import annotations

import gc
from itertools import pairwise

import pytest

from millstream.broker.quotas import clients
from millstream.broker.quotas.clients import (
    KEPT_MS,
    OTHERS,
    ClientQuotas,
    MutationUsage,
    QuotaMetric,
    Usage,
)
from millstream.broker.quotas.limits import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Limits,
    Quotas,
)
from millstream.broker.quotas.rates import Window

THROTTLE_MS_MAX = 10_000


def client_quotas(quotas: Quotas) -> ClientQuotas:
    return ClientQuotas(
        Limits(quotas),
        window=Window(),
        controller_window=Window(),
        throttle_ms_max=THROTTLE_MS_MAX,
    )


def metrics_of(quotas: ClientQuotas, now_ms: int) -> list[QuotaMetric]:
    return [metric for metric in quotas.metrics(now_ms) if metric is not None]


def user_quota(**values: float) -> Quotas:
    return {frozenset({(USER, "alice")}): values}


def test_clients_of_a_user_share_its_quota() -> None:
    quotas = client_quotas(user_quota(producer_byte_rate=100))
    first = quotas.usage(PRODUCER_BYTE_RATE, "alice", "a", 0)
    second = quotas.usage(PRODUCER_BYTE_RATE, "alice", "b", 0)
    assert first is second is not None
    assert quotas.usage(PRODUCER_BYTE_RATE, "bob", "a", 0) is None


def test_default_of_clients_is_not_shared() -> None:
    quotas = client_quotas({frozenset({(CLIENT_ID, None)}): {CONSUMER_BYTE_RATE: 100}})
    first = quotas.usage(CONSUMER_BYTE_RATE, "alice", "a", 0)
    second = quotas.usage(CONSUMER_BYTE_RATE, "alice", "b", 0)
    assert first is not second
    assert first is quotas.usage(CONSUMER_BYTE_RATE, "bob", "a", 0)


def test_throttling_is_bounded_and_counted() -> None:
    quotas = client_quotas(user_quota(producer_byte_rate=1, request_percentage=1))
    produce = quotas.usage(PRODUCER_BYTE_RATE, "alice", "a", 0)
    request = quotas.usage(REQUEST_PERCENTAGE, "alice", "a", 0)
    assert produce is not None
    assert request is not None
    assert produce.record(10**6, 0) == THROTTLE_MS_MAX
    assert produce.record(10**6, 0) == THROTTLE_MS_MAX
    assert request.record(10**6, 0) == 1000
    by_key = {metric.key: metric for metric in metrics_of(quotas, 0)}
    assert by_key[PRODUCER_BYTE_RATE].value == 2 * 10**5
    assert by_key[PRODUCER_BYTE_RATE].throttled_count == 2
    assert by_key[PRODUCER_BYTE_RATE].throttled_ms == 2 * THROTTLE_MS_MAX
    assert by_key[PRODUCER_BYTE_RATE].throttle_ms == THROTTLE_MS_MAX
    assert by_key[REQUEST_PERCENTAGE].throttled_ms == 1000
    later = {metric.key: metric for metric in metrics_of(quotas, 11_000)}
    assert later[PRODUCER_BYTE_RATE].throttle_ms == 0  # a window later
    assert later[PRODUCER_BYTE_RATE].throttled_count == 2


def test_amount_that_is_not_accepted_does_not_count() -> None:
    usage = client_quotas(user_quota(consumer_byte_rate=100)).usage(
        CONSUMER_BYTE_RATE, "alice", "a", 0
    )
    assert usage is not None
    assert usage.accept(900, 0) == 0
    assert usage.accept(200, 0) == 1000
    assert usage.excess_ms(0) == 0
    assert usage.accept(100, 0) == 0


def test_first_amount_of_a_window_is_accepted_however_large() -> None:
    usage = client_quotas(user_quota(consumer_byte_rate=100)).usage(
        CONSUMER_BYTE_RATE, "alice", "a", 0
    )
    assert usage is not None
    assert usage.accept(10**6, 0) == 0
    assert usage.excess_ms(0) == THROTTLE_MS_MAX
    assert usage.accept(1, 5000) > 0
    assert usage.accept(10**6, 11_000) == 0


def test_new_bound_applies_to_what_was_used_before() -> None:
    quotas = client_quotas(user_quota(producer_byte_rate=100))
    usage = quotas.usage(PRODUCER_BYTE_RATE, "alice", "a", 0)
    assert usage is not None
    assert usage.record(900, 0) == 0
    quotas.limits = Limits(user_quota(producer_byte_rate=10))
    assert quotas.usage(PRODUCER_BYTE_RATE, "alice", "b", 0) is usage
    assert usage.record(0, 0) > 0


def test_clients_that_have_gone_are_forgotten_but_not_at_once() -> None:
    quotas = client_quotas({frozenset({(CLIENT_ID, None)}): {PRODUCER_BYTE_RATE: 1}})
    for number in range(1000):
        usage = quotas.usage(PRODUCER_BYTE_RATE, "alice", f"client-{number}", 0)
        assert usage is not None
        usage.record(1000, 0)
    del usage
    quotas.expire(10)
    assert len(quotas) == 1000
    again = quotas.usage(PRODUCER_BYTE_RATE, "alice", "client-0", 20)  # connected again
    assert again is not None
    assert again.excess_ms(20) > 0
    quotas.expire(KEPT_MS + 15)
    gc.collect()
    assert len(quotas) == 1


@pytest.mark.parametrize("key", [PRODUCER_BYTE_RATE, CONTROLLER_MUTATION_RATE])
def test_clients_beyond_the_most_share_one_usage(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(clients, "USAGES_MAX", 10)
    monkeypatch.setattr(clients, "METRICS_MAX", 5)
    named = frozenset({(CLIENT_ID, "named")})
    quotas = client_quotas({frozenset({(CLIENT_ID, None)}): {key: 1}, named: {key: 2}})

    def usage(client_id: str) -> Usage | MutationUsage | None:
        if key == CONTROLLER_MUTATION_RATE:
            return quotas.mutations("alice", client_id, 0)
        return quotas.usage(key, "alice", client_id, 0)

    first = [usage(f"client-{number}") for number in range(10)]
    assert len({id(it) for it in first}) == 10
    others = usage("client-10")
    assert others is usage("client-11") is not None
    assert others.client_id == OTHERS
    assert usage("client-3") is first[3]
    assert usage("named") not in (None, others)  # has a quota of its own
    assert len(quotas) == 12
    others.throttles.record(5, 0)
    shown = metrics_of(quotas, 0)
    assert len(shown) == 5
    assert shown[0].client_id == OTHERS


def test_metrics_of_many_clients_are_collected_in_short_steps() -> None:
    quotas = client_quotas({frozenset({(CLIENT_ID, None)}): {PRODUCER_BYTE_RATE: 1}})
    count = 2 * clients.METRICS_MAX
    used = [quotas.usage(PRODUCER_BYTE_RATE, "a", f"made-up-{it}", 0) for it in range(count)]
    found = list(quotas.metrics(0))
    pauses = [index for index, metric in enumerate(found) if metric is None]
    assert len(found) - len(pauses) == clients.METRICS_MAX
    assert len(pauses) >= count / clients.USAGES_AT_ONCE
    assert max(after - before for before, after in pairwise(pauses)) <= clients.METRICS_AT_ONCE + 1
    assert all(used)


def test_clients_with_very_long_ids_share_one_usage() -> None:
    quotas = client_quotas({frozenset({(CLIENT_ID, None)}): {PRODUCER_BYTE_RATE: 1}})
    usages = [quotas.usage(PRODUCER_BYTE_RATE, "a", letter * 256, 0) for letter in "xyz"]
    assert usages[0] is usages[1] is usages[2] is not None
    assert len(quotas) == 1


def test_usage_of_an_open_connection_is_kept() -> None:
    quotas = client_quotas(user_quota(producer_byte_rate=100))
    held = quotas.usage(PRODUCER_BYTE_RATE, "alice", "a", 0)
    quotas.expire(10 * KEPT_MS)
    gc.collect()
    assert quotas.usage(PRODUCER_BYTE_RATE, "alice", "b", 10 * KEPT_MS) is held


def test_client_without_quotas_has_no_meters() -> None:
    quotas = client_quotas(user_quota(controller_mutation_rate=1))
    assert quotas.meters("alice", "a", 0) is None
    assert client_quotas(user_quota(request_percentage=1)).meters("alice", "a", 0) is not None


def test_mutations_have_a_bucket_that_expires() -> None:
    quotas = client_quotas(user_quota(controller_mutation_rate=2))
    usage = quotas.mutations("alice", "a", 0)
    assert usage is not None
    assert usage is quotas.mutations("alice", "b", 0)
    assert quotas.mutations("bob", "b", 0) is None
    assert usage.bucket.record(122, 0) == 50_000
    (metric,) = metrics_of(quotas, 0)
    assert metric[:5] == (CONTROLLER_MUTATION_RATE, "alice", "", 2, -100)
    quotas.limits = Limits(user_quota(controller_mutation_rate=10))
    quotas.mutations("alice", "a", 0)
    assert usage.bucket.throttle_ms(0) == 10_000
    quotas.expire(KEPT_MS + 1)
    assert len(quotas) == 0


def test_connections_beyond_the_rate_of_their_address_are_delayed_and_not_counted() -> None:
    quotas = client_quotas({frozenset({(IP, None)}): {CONNECTION_CREATION_RATE: 2}})
    assert [quotas.connection_ms("10.0.0.1", 0) for _ in range(20)] == [0] * 20
    assert quotas.connection_ms("10.0.0.1", 0) == 500
    assert quotas.connection_ms("10.0.0.1", 0) == 500
    assert quotas.connection_ms("10.0.0.2", 0) == 0
    assert quotas.connection_ms("10.0.0.1", 500) == 0
    quotas.limits = Limits({frozenset({(IP, None)}): {CONNECTION_CREATION_RATE: 1}})
    assert quotas.connection_ms("10.0.0.1", 500) == 1000  # at most
    assert {metric.client_id for metric in metrics_of(quotas, 500)} == {"10.0.0.1", "10.0.0.2"}
    quotas.expire(11_000)
    assert len(quotas) == 0
    quotas.limits = Limits({})
    assert quotas.connection_ms("10.0.0.1", 0) == 0


@pytest.mark.parametrize("address", ["10.0.0.1", "fe80::1"])
def test_addresses_without_quota_are_not_kept(address: str) -> None:
    quotas = client_quotas({frozenset({(IP, "10.9.9.9")}): {CONNECTION_CREATION_RATE: 2}})
    assert quotas.connection_ms(address, 0) == 0
    assert len(quotas) == 0
