"""Which quota applies to whom."""

from __future__ import annotations

import itertools

import pytest

from millstream.broker.quotas.limits import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    USER,
    Limit,
    Limits,
)

# In Kafka's order, with who shares the quota.
ENTITIES = [
    ({(USER, "alice"), (CLIENT_ID, "app")}, "alice", "app"),
    ({(USER, "alice"), (CLIENT_ID, None)}, "alice", "app"),
    ({(USER, "alice")}, "alice", ""),
    ({(USER, None), (CLIENT_ID, "app")}, "alice", "app"),
    ({(USER, None), (CLIENT_ID, None)}, "alice", "app"),
    ({(USER, None)}, "alice", ""),
    ({(CLIENT_ID, "app")}, "", "app"),
    ({(CLIENT_ID, None)}, "", "app"),
]


@pytest.mark.parametrize("chosen", range(len(ENTITIES)))
def test_most_specific_quota_wins(chosen: int) -> None:
    quotas = {
        frozenset(entity): {PRODUCER_BYTE_RATE: float(position)}
        for position, (entity, *_) in enumerate(ENTITIES)
        if position >= chosen
    }
    entity, user, client_id = ENTITIES[chosen]
    limit = Limits(quotas).find(PRODUCER_BYTE_RATE, "alice", "app")
    assert limit == Limit(chosen, user, client_id, (CLIENT_ID, None) in entity)


def test_only_entities_with_the_key_count() -> None:
    quotas = {
        frozenset({(USER, "alice")}): {CONSUMER_BYTE_RATE: 1.0},
        frozenset({(CLIENT_ID, None)}): {PRODUCER_BYTE_RATE: 2.0},
    }
    limits = Limits(quotas)
    assert limits.find(PRODUCER_BYTE_RATE, "alice", "app") == Limit(2, "", "app", True)
    assert limits.find(CONSUMER_BYTE_RATE, "alice", "app") == Limit(1, "alice", "", False)
    assert limits.find(CONSUMER_BYTE_RATE, "bob", "app") is None
    assert limits.find("request_percentage", "alice", "app") is None


def test_quota_of_others_does_not_apply() -> None:
    for entity, *_ in ENTITIES:
        limits = Limits({frozenset(entity): {PRODUCER_BYTE_RATE: 1.0}})
        for user, client_id in itertools.product(("alice", "bob"), ("app", "tool")):
            parts = dict(entity)
            applies = parts.get(USER) in (None, user) and parts.get(CLIENT_ID) in (None, client_id)
            found = limits.find(PRODUCER_BYTE_RATE, user, client_id)
            assert (found is not None) == applies


def test_share_of_a_process_is_its_part_of_the_quota() -> None:
    quotas = {
        frozenset({(USER, None)}): {PRODUCER_BYTE_RATE: 100.0},
        frozenset({(IP, None)}): {CONNECTION_CREATION_RATE: 8.0},
    }
    limits = Limits(quotas, share=0.25)
    assert limits.find(PRODUCER_BYTE_RATE, "a", "") == Limit(25, "a", "", False)
    assert limits.find_ip("10.0.0.1") == 2


def test_address_has_its_own_quota_or_the_default() -> None:
    limits = Limits(
        {
            frozenset({(IP, None)}): {CONNECTION_CREATION_RATE: 8.0},
            frozenset({(IP, "10.0.0.1")}): {CONNECTION_CREATION_RATE: 3.0},
        }
    )
    assert limits.find_ip("10.0.0.1") == 3
    assert limits.find_ip("10.0.0.2") == 8
    assert Limits({}).find_ip("10.0.0.2") is None
    other = Limits({frozenset({(IP, "10.0.0.1")}): {CONNECTION_CREATION_RATE: 3.0}})
    assert other.find_ip("10.0.0.2") is None
