"""`millstream quota` against a real broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.peers.patience import wait_until

Ok = Callable[..., str]


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4().hex[:8]}"


def quotas_of(ok: Ok, entity: dict[str, str | None]) -> Any:
    rows = json.loads(ok("quota", "list", "--json"))
    return next((row["quotas"] for row in rows if row["entity"] == entity), None)


def test_quotas_are_set_listed_and_removed(ok: Ok, cli: Run, name: str) -> None:
    who = ("--user", name, "--client-id", "app")
    said = ok("quota", "set", *who, "--producer-byte-rate", "1MB", "--consumer-byte-rate", "2MiB")
    assert said == (
        f"set for user {name}, client id app: producer_byte_rate 1 MB/s, "
        "consumer_byte_rate 2 MiB/s\n"
    )
    ok("quota", "set", *who, "--request-percentage", "12.5", "--controller-mutation-rate", "3")
    entity: dict[str, str | None] = {"user": name, "client-id": "app"}
    wait_until(
        lambda: (
            quotas_of(ok, entity)
            == {
                "producer_byte_rate": 1e6,
                "consumer_byte_rate": 2.0**21,
                "request_percentage": 12.5,
                "controller_mutation_rate": 3.0,
            }
        )
    )
    table = ok("quota", "list", "--user", name)
    for shown in ("USER", "PRODUCE", "1 MB/s", "2 MiB/s", "12.5 %", "3/s", name):
        assert shown in table
    assert "ADDRESS" not in table
    said = ok("quota", "remove", *who, "--consumer-byte-rate")
    assert said == f"removed for user {name}, client id app: consumer_byte_rate\n"
    wait_until(lambda: "consumer_byte_rate" not in quotas_of(ok, entity))
    again = cli("quota", "remove", *who, "--consumer-byte-rate")
    assert again.exit_code == 1
    assert "there is no quota consumer_byte_rate for user" in again.err
    ok("quota", "remove", *who)
    wait_until(lambda: quotas_of(ok, entity) is None)
    assert ok("quota", "list", "--user", name) == "no quotas\n"
    gone = cli("quota", "remove", *who)
    assert gone.exit_code == 1
    assert "there is no quota for user" in gone.err


def test_default_is_not_the_name_of_a_user(ok: Ok, name: str) -> None:
    ok("quota", "set", "--user", name, "--client-id-default", "--producer-byte-rate", "1000000000")
    entity: dict[str, str | None] = {"user": name, "client-id": None}
    wait_until(lambda: quotas_of(ok, entity) == {"producer_byte_rate": 1e9})
    assert "<default>" in ok("quota", "list", "--user", name)
    ok("quota", "remove", "--user", name, "--client-id-default")
    wait_until(lambda: quotas_of(ok, entity) is None)


def test_addresses_have_a_connection_rate(ok: Ok) -> None:
    address = "203.0.113.7"
    said = ok("quota", "set", "--ip", address, "--connection-creation-rate", "10")
    assert said == f"set for address {address}: connection_creation_rate 10/s\n"
    wait_until(lambda: quotas_of(ok, {"ip": address}) == {"connection_creation_rate": 10.0})
    ok("quota", "remove", "--ip", address)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (("set", "--producer-byte-rate", "1MB"), 2, "for whom?"),
        (("set", "--user", "a"), 2, "no quota given"),
        (("set", "--user", "a", "--producer-byte-rate", "1 mile"), 2, "--producer-byte-rate"),
        (("set", "--user", "a", "--user-default", "--request-percentage", "1"), 2, "not both"),
        (("set", "--user", "a", "--ip", "::1", "--request-percentage", "1"), 2, "without --user"),
        (("set", "--user", "a", "--producer-byte-rate", "0"), 1, "must be greater than 0"),
        (("set", "--user", "a", "--connection-creation-rate", "5"), 1, "connection_creation_rate"),
        (("remove",), 2, "for whom?"),
    ],
)
def test_bad_input_is_refused_with_the_reason(
    cli: Run, arguments: tuple[str, ...], exit_code: int, message: str
) -> None:
    outcome = cli("quota", *arguments)
    assert outcome.exit_code == exit_code, outcome
    assert message in outcome.err
