"""`millstream acl` against a broker with an authorizer: Millstream's, and Apache Kafka's."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millstream.config.authorization import STANDARD_AUTHORIZER
from tests.cli.conftest import Run
from tests.conformance.brokers import SETTINGS
from tests.peers.kafka import start_kafka
from tests.peers.servers import start_millstream

AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
READ_T = ("--operation", "read", "--topic", "t")
Acl = Callable[..., str]
FailedAcl = Callable[..., str]


@pytest.fixture(
    scope="module",
    params=[
        "millstream",
        pytest.param("apache-kafka", marks=[pytest.mark.java, pytest.mark.slow]),
    ],
)
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "millstream":
        server = start_millstream(directory / "data", SETTINGS | AUTHORIZER)
    else:
        server = start_kafka(directory, SETTINGS | AUTHORIZER)
    yield server.bootstrap
    server.stop()


@pytest.fixture
def user() -> str:
    return f"u-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def acl(run: Run, address: str) -> Acl:
    def call(*arguments: str) -> str:
        result = run("acl", *arguments, "--bootstrap-server", address)
        assert result.exit_code == 0, result.err
        return result.out

    return call


@pytest.fixture
def failed(run: Run, address: str) -> FailedAcl:
    def call(*arguments: str) -> str:
        result = run("acl", *arguments, "--bootstrap-server", address)
        assert result.exit_code != 0
        return " ".join(result.err.split())

    return call


def entries(acl: Acl, *arguments: str) -> list[tuple[str, str, str, str, str]]:
    rows: list[dict[str, Any]] = json.loads(acl("list", *arguments, "--json"))
    return [
        (row["permission"], row["operation"], row["type"], row["name"], row["pattern"])
        for row in rows
    ]


def test_entry_is_added_listed_and_removed(acl: Acl, user: str) -> None:
    shown = acl("add", "--allow-principal", user, "--operation", "read", "--topic", "orders")
    assert "PRINCIPAL" in shown
    assert f"User:{user}" in shown
    expected = [("allow", "read", "topic", "orders", "literal")]
    assert entries(acl, "--principal", user) == expected
    again = acl("add", "--allow-principal", f"User:{user}", "--operation", "READ", "--topic",
                "orders", "--json")  # fmt: skip
    assert json.loads(again)[0]["host"] == "*"
    assert entries(acl, "--principal", user) == expected
    assert acl("remove", "--principal", user, "--yes") == "removed 1 entries\n"
    assert entries(acl, "--principal", user) == []
    assert acl("remove", "--principal", user, "--yes") == "no entry matches\n"


def test_what_producers_and_consumers_need(acl: Acl, user: str) -> None:
    names = ("--topic", user, "--group", user, "--transactional-id", user)
    acl("add", "--allow-principal", user, "--for-producer", "--for-consumer", *names)
    found = {(kind, operation) for _, operation, kind, *_ in entries(acl, "--principal", user)}
    assert found == {
        ("topic", "write"), ("topic", "describe"), ("topic", "create"), ("topic", "read"),
        ("group", "read"), ("transactional-id", "write"), ("transactional-id", "describe"),
    }  # fmt: skip


def test_prefixes_hosts_and_denials(acl: Acl, user: str) -> None:
    acl(
        "add", "--allow-principal", user, "--deny-principal", f"{user}-2",
        "--operation", "DescribeConfigs", "--topic", f"{user}.", "--cluster", "--prefixed",
        "--deny-host", "10.0.0.9", "--deny-host", "10.0.0.8",
    )  # fmt: skip
    allowed = entries(acl, "--principal", user)
    assert set(allowed) == {
        ("allow", "describe-configs", "topic", f"{user}.", "prefixed"),
        ("allow", "describe-configs", "cluster", "kafka-cluster", "literal"),
    }
    denied = json.loads(acl("list", "--principal", f"{user}-2", "--json"))
    assert {(it["permission"], it["host"]) for it in denied} == {
        ("deny", "10.0.0.9"),
        ("deny", "10.0.0.8"),
    }
    assert entries(acl, "--topic", f"{user}.orders", "--principal", user) == []
    matching = entries(acl, "--topic", f"{user}.orders", "--principal", user, "--matching")
    assert matching == [("allow", "describe-configs", "topic", f"{user}.", "prefixed")]


def test_only_what_matches_all_options_is_removed(acl: Acl, user: str) -> None:
    for name in ("read", "write"):
        acl("add", "--allow-principal", user, "--operation", name, "--topic", "a", "--topic", "b")
    acl("remove", "--principal", user, "--operation", "write", "--topic", "a", "--yes")
    left = {(operation, name) for _, operation, _, name, _ in entries(acl, "--principal", user)}
    assert left == {("read", "a"), ("read", "b"), ("write", "b")}


def test_removal_asks_first(run: Run, acl: Acl, address: str, user: str) -> None:
    acl("add", "--allow-principal", user, "--operation", "read", "--topic", "a")
    command = ("acl", "remove", "--principal", user, "--bootstrap-server", address)
    refused = run(*command, stdin="n\n")
    assert refused.exit_code != 0
    assert "remove these 1 entries?" in refused.out + refused.err
    assert len(entries(acl, "--principal", user)) == 1
    assert run(*command, stdin="y\n").exit_code == 0
    assert entries(acl, "--principal", user) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--operation", "read", "--topic", "t"], "give --allow-principal or --deny-principal"),
        (["--allow-principal", "a", "--operation", "read"], "give --topic, --group"),
        (["--allow-principal", "a", "--topic", "t"], "give --operation, --for-producer"),
        (
            ["--allow-principal", "a", "--topic", "t", "--operation", "reed"],
            "--operation reed: it is one of all, read",
        ),
        (
            ["--allow-principal", "a", "--group", "g", "--operation", "write"],
            "--operation write: on a group there are all, read",
        ),
        (["--allow-principal", "", "--topic", "t", "--operation", "read"], "user is empty"),
        (["--allow-principal", "a", "--topic", "", "--operation", "read"], "resource is empty"),
        (
            ["--allow-principal", "a", "--deny-host", "10.0.0.9", *READ_T],
            "give that too",
        ),
        (["--deny-principal", "a", "--allow-host", "10.0.0.9", *READ_T], "--allow-principal"),
        (
            ["--deny-principal", "a", "--deny-host", "10.0.0.0/8", *READ_T],
            "--deny-host 10.0.0.0/8: it is one address",
        ),
        (["--allow-principal", "a", "--allow-host", "db.example", *READ_T], "it is one address"),
        (
            ["--allow-principal", "a", "--operation", "read", "--topic", "*", "--prefixed"],
            "no name begins with *",
        ),
        (
            ["--allow-principal", "a", "--for-producer", "--topic", "t", "--group", "g"],
            "--for-producer needs nothing on a group",
        ),
    ],
)
def test_wrong_options_are_explained(
    failed: FailedAcl, arguments: list[str], complaint: str
) -> None:
    assert complaint in failed("add", *arguments)


def test_removal_of_everything_must_be_said(failed: FailedAcl) -> None:
    assert "say what to remove" in failed("remove", "--yes")


def test_broker_without_an_authorizer_is_explained(cli: Run) -> None:
    result = cli("acl", "list")
    assert result.exit_code == 1
    assert "the brokers have no authorizer" in " ".join(result.err.split())
