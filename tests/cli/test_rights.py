"""The rights of commands: each is that of a command there is, and is named when it is lacking."""

from __future__ import annotations

import pytest

from millstream.cli.rights import RIGHTS, with_rights
from tests.cli.commands import all_commands

REFUSED = "Broker: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"


def test_rights_are_those_of_commands() -> None:
    assert set(RIGHTS) <= {" ".join(path) for path in all_commands()}


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["topic", "create", "orders"], "Create on the topic, or on the cluster"),
        (["-b", "host:1", "topic", "delete", "--yes", "orders"], "Delete on the topic"),
        (["--client-config", "topic", "produce", "orders"], "Write on the topic"),
        (["cluster"], "Describe on the cluster"),
        (["excise", "--topic", "orders", "--key", "alice"], RIGHTS["excise"]),
        (["excise", "list"], RIGHTS["excise"]),
    ],
)
def test_refusal_names_the_right(arguments: list[str], needed: str) -> None:
    assert with_rights(REFUSED, arguments) == f"{REFUSED}; the user needs {needed}"


def test_other_messages_stay_as_they_are() -> None:
    named = f"{REFUSED}; the user needs Read on the topic"
    assert with_rights(named, ["consume", "orders"]) == named
    assert with_rights("no broker answers", ["consume", "orders"]) == "no broker answers"
    assert with_rights(REFUSED, ["check"]) == REFUSED
