"""Receipts of forgotten subjects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.shredding import DirectoryKeys, KeyStoreError
from millstream.shredding.forgetting import check_receipts, forget


@pytest.fixture
def keys(tmp_path: Path) -> DirectoryKeys:
    store = DirectoryKeys(tmp_path / "keys")
    for subject in ("alice", "bob", "carol"):
        store.current(subject)
    return store


@pytest.fixture
def receipts(tmp_path: Path, keys: DirectoryKeys) -> Path:
    path = tmp_path / "receipts.jsonl"
    for subject in ("alice", "bob", "carol"):
        forget(keys, subject, receipts=path, requested_by="test", reason="ticket")
    return path


def test_receipts_are_chained_and_name_nobody(receipts: Path) -> None:
    assert check_receipts(receipts) == []
    lines = [json.loads(it) for it in receipts.read_text().splitlines()]
    assert [it["number"] for it in lines] == [1, 2, 3]
    assert [it["previous"] for it in lines] == ["", lines[0]["digest"], lines[1]["digest"]]
    assert "alice" not in receipts.read_text()


def test_unknown_subject_gets_no_receipt(keys: DirectoryKeys, tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    with pytest.raises(KeyStoreError, match="nothing to forget"):
        forget(keys, "nobody", receipts=path, requested_by="test")
    assert not path.exists()


def test_changed_and_missing_receipts_are_noticed(receipts: Path) -> None:
    lines = receipts.read_text().splitlines()
    receipts.write_text("\n".join([lines[0], lines[1].replace("ticket", "other"), lines[2]]))
    assert check_receipts(receipts) == ["receipt 2 was changed: its hash does not match"]
    receipts.write_text("\n".join([lines[0], lines[2]]))
    assert check_receipts(receipts) == ["a receipt before line 2 is missing or was changed"]
    receipts.write_text("garbage")
    assert check_receipts(receipts) == ["line 1 is no receipt"]
