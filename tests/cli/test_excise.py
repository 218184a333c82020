"""`millstream excise` against a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

Ok = Callable[..., str]


@pytest.fixture
def filled(ok: Ok, topic: str) -> str:
    lines = [f"user{number % 4}:value {number} of user{number % 4}" for number in range(20)]
    ok("produce", topic, "--key-separator", ":", stdin="\n".join(lines))
    return topic


def values(ok: Ok, topic: str) -> list[str]:
    lines = ok("consume", topic, "--from-beginning", "--no-follow", "--json").splitlines()
    return [str(json.loads(line)["value"]) for line in lines]


def test_dry_run_shows_the_plan_and_removes_nothing(cli: Run, ok: Ok, filled: str) -> None:
    shown = ok("excise", "--topic", filled, "--key", "user1", "--dry-run")
    assert filled in shown
    rows = json.loads(ok("excise", "--topic", filled, "--key", "user1", "--dry-run", "--json"))
    assert sum(row["records"] for row in rows) == 5
    assert len(values(ok, filled)) == 20


def test_records_are_removed_and_the_receipt_verified(
    ok: Ok, cli: Run, filled: str, tmp_path: Path
) -> None:
    file = tmp_path / "receipt.json"
    arguments = ("--topic", filled, "--key", "user1", "--reason", "ticket 7", "--yes")
    out = ok("excise", *arguments, "--receipt", str(file))
    assert "removed 5 records" in out
    assert not any("user1" in it for it in values(ok, filled))
    assert len(values(ok, filled)) == 15
    assert "intact" in ok("excise", "verify", str(file), "--key", "user1")
    receipt: dict[str, Any] = json.loads(file.read_text())
    assert receipt["job"]["reason"] == "ticket 7"
    rows = json.loads(ok("excise", "list", "--json"))
    (row,) = [it for it in rows if it["topic"] == filled]
    assert (row["state"], row["records"], row["receipt"]) == ("complete", 5, receipt["number"])
    assert "intact" in ok("excise", "verify", str(receipt["number"]))
    assert "removed 5 records" in ok("excise", "resume", row["job"])  # a second time: the same
    other = cli("excise", "verify", str(file), "--key", "user2")
    assert (other.exit_code, "not of this selector" in other.err) == (1, True)


def test_predicate_selects_records(ok: Ok, filled: str) -> None:
    where = "_value like '%of user3'"
    assert "removed 5 records" in ok("excise", "--topic", filled, "--where", where, "--yes")
    assert not any("user3" in it for it in values(ok, filled))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name --topic"),
        (("--topic", "TOPIC"), "one of --key"),
        (("--topic", "TOPIC", "--key", "a", "--where", "true"), "give one of"),
        (("--topic", "TOPIC", "--key", " "), "is empty"),
        (("--topic", "TOPIC", "--key-hex", "xy"), "--key-hex 'xy'"),
        (("--topic", "TOPIC", "--key", "nobody"), "nothing to remove"),
        (("--topic", "TOPIC", "--key", "user1"), "add --yes"),
        (("--topic", "no-such-topic", "--key", "a"), "no-such-topic"),
        (("resume", "nothing"), "there is no job nothing"),
        (("verify", "999999"), "there is no receipt 999999"),
        (("verify", "/nowhere.json"), "cannot read /nowhere.json"),
    ],
)
def test_mistakes_are_named(
    cli: Run, ok: Ok, filled: str, arguments: tuple[str, ...], message: str
) -> None:
    outcome = cli("excise", *(filled if it == "TOPIC" else it for it in arguments))
    assert outcome.exit_code in (1, 2)
    assert message in outcome.err
    assert len(values(ok, filled)) == 20
