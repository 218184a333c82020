"""`millstream keys` on a store in a directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.shredding import DirectoryKeys
from tests.cli.conftest import Run


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = tmp_path / "keys"
    DirectoryKeys(path).current("alice")
    return str(path)


def test_forgotten_subject_has_a_receipt(run: Run, store: str) -> None:
    key = DirectoryKeys(store).current("alice")
    done = run("keys", "forget", "alice", "--keys", store, "--reason", "ticket 7", "--yes")
    assert done.exit_code == 0, done.err
    assert "deleted 1 keys; receipt 1" in done.out
    assert DirectoryKeys(store).find(key.id) is None
    shown = json.loads(run("keys", "status", "--keys", store, "--json").out)
    assert shown == {"subjects": 0, "receipts": 1, "problems": []}


def test_rotated_subject_has_a_new_key(run: Run, store: str) -> None:
    old = DirectoryKeys(store).current("alice")
    assert run("keys", "rotate", "alice", "--keys", store).exit_code == 0
    assert DirectoryKeys(store).current("alice") != old


def test_mistakes_are_named(run: Run, store: str) -> None:
    cases = {
        "nothing to forget": ("forget", "bob", "--keys", store, "--yes"),
        "add --yes": ("forget", "alice", "--keys", store),
        "has no keys": ("rotate", "bob", "--keys", store),
        "name a file with --receipts": ("status", "--keys", "postgresql://localhost/keys"),
    }
    for message, arguments in cases.items():
        outcome = run("keys", *arguments)
        assert outcome.exit_code in (1, 2)
        assert message in outcome.err
    assert run("keys", "status", "--keys", store).out == "1 subjects, 0 receipts\n"


def test_damaged_receipts_are_reported(run: Run, store: str) -> None:
    Path(store, "receipts.jsonl").write_text("garbage\n")
    outcome = run("keys", "status", "--keys", store)
    assert (outcome.exit_code, "line 1 is no receipt" in outcome.err) == (1, True)
