"""What may be set for whom, and what filters match."""

from __future__ import annotations

import math

import pytest

from millstream.broker.quotas.limits import CLIENT_ID, IP, USER
from millstream.broker.quotas.requests import (
    Component,
    Match,
    QuotaFilter,
    check_entity,
    check_values,
)
from millstream.errors import ApiError, ErrorCode

ALICE = frozenset({(USER, "alice")})
ALICE_APP = frozenset({(USER, "alice"), (CLIENT_ID, "app")})
USER_DEFAULT = frozenset({(USER, None)})
APP = frozenset({(CLIENT_ID, "app")})
ADDRESS = frozenset({(IP, "10.0.0.1")})
QUOTAS = {
    entity: {"producer_byte_rate": 1.0} for entity in (ALICE, ALICE_APP, USER_DEFAULT, APP, ADDRESS)
}


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "empty client quota entity"),
        ([(USER, "a"), (USER, "b")], "duplicate entity entry user"),
        ([("group", "a")], "Unhandled client quota entity type: group"),
        ([(USER, "")], "Empty user not supported"),
        ([(IP, "10.0.0.1"), (USER, "a")], "IP entity"),
        ([(IP, "no address")], "no address is not a valid IP"),
    ],
)
def test_entity_that_cannot_be_is_refused(
    parts: list[tuple[str, str | None]], message: str
) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        check_entity(parts)
    assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_addresses_have_one_form() -> None:
    assert check_entity([(IP, "FE80:0::1")]) == frozenset({(IP, "fe80::1")})
    assert check_entity([(IP, None)]) == frozenset({(IP, None)})


@pytest.mark.parametrize(
    ("entity", "key", "value", "message"),
    [
        (ALICE, "consumer_bytes", 1.0, "Invalid configuration key consumer_bytes"),
        (ALICE, "connection_creation_rate", 1.0, "Invalid configuration key"),
        (ADDRESS, "producer_byte_rate", 1.0, "Invalid configuration key"),
        (ALICE, "producer_byte_rate", 0.0, "must be greater than 0"),
        (ALICE, "request_percentage", -1.0, "must be greater than 0"),
        (ALICE, "request_percentage", math.nan, "must be greater than 0"),
        (ALICE, "request_percentage", math.inf, "must be finite"),
        (ALICE, "controller_mutation_rate", math.inf, "must be finite"),
        (ALICE, "producer_byte_rate", 1.5, "cannot be a fractional value"),
        (ALICE, "producer_byte_rate", 2.0**64, "too large for a LONG"),
        (ADDRESS, "connection_creation_rate", 2.0**31, "too large for an INT"),
    ],
)
def test_value_that_cannot_be_is_refused(
    entity: frozenset[tuple[str, str | None]], key: str, value: float, message: str
) -> None:
    with pytest.raises(ApiError, match=message):
        check_values(entity, [(key, value)])


def test_values_are_set_and_removed() -> None:
    operations = [("producer_byte_rate", 1024.0), ("request_percentage", 0.5)]
    assert check_values(ALICE, [*operations, ("consumer_byte_rate", None)]) == {
        "producer_byte_rate": 1024.0,
        "request_percentage": 0.5,
        "consumer_byte_rate": None,
    }
    with pytest.raises(ApiError, match="Duplicate quota key producer_byte_rate"):
        check_values(ALICE, [operations[0], operations[0]])


def select(*components: Component, strict: bool = False) -> set[frozenset[tuple[str, str | None]]]:
    return set(QuotaFilter(components, strict=strict).select(QUOTAS))


def test_filter_matches_entities_with_these_parts() -> None:
    user_alice = Component(USER, Match.EXACT, "alice")
    any_user = Component(USER, Match.ANY, None)
    any_client = Component(CLIENT_ID, Match.ANY, None)
    assert select() == set(QUOTAS)
    assert select(strict=True) == set()
    assert select(user_alice) == {ALICE, ALICE_APP}
    assert select(user_alice, strict=True) == {ALICE}
    assert select(any_user) == {ALICE, ALICE_APP, USER_DEFAULT}
    assert select(any_user, strict=True) == {ALICE, USER_DEFAULT}
    assert select(Component(USER, Match.DEFAULT, None)) == {USER_DEFAULT}
    assert select(any_user, any_client) == {ALICE_APP}
    assert select(any_client, strict=True) == {APP}
    assert select(Component(IP, Match.ANY, None)) == {ADDRESS}
    assert select(Component(USER, Match.EXACT, "bob")) == set()


@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([("", 2, None)], ErrorCode.INVALID_REQUEST, "empty entity type"),
        ([("group", 2, None)], ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type group"),
        ([(USER, 2, None), (USER, 1, None)], ErrorCode.INVALID_REQUEST, "more than once"),
        ([(USER, 3, None)], ErrorCode.INVALID_REQUEST, "Unknown match type 3"),
        ([(USER, 0, None)], ErrorCode.INVALID_REQUEST, "set match string to null"),
        ([(USER, 1, "a")], ErrorCode.INVALID_REQUEST, "MATCH_TYPE_DEFAULT, but also"),
        ([(USER, 2, "a")], ErrorCode.INVALID_REQUEST, "MATCH_TYPE_SPECIFIED, but also"),
        ([(USER, 2, None), (IP, 2, None)], ErrorCode.INVALID_REQUEST, "IP filter component"),
    ],
)
def test_filter_that_cannot_be_is_refused(
    components: list[tuple[str, int, str | None]], code: ErrorCode, message: str
) -> None:
    with pytest.raises(ApiError, match=message) as refused:
        QuotaFilter((Component(*it) for it in components), strict=False)
    assert refused.value.code is code
