"""Receipts of forgotten subjects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.shredding import DirectoryKeys, KeyStoreError, forgetting
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


def test_receipt_is_written_after_a_crash_too(
    keys: DirectoryKeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed when the keys were gone and the receipt was not written yet."""
    path = tmp_path / "receipts.jsonl"
    key = keys.current("alice")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as crashing:
        crashing.setattr(forgetting, "append_receipt", crash)
        with pytest.raises(KeyboardInterrupt):
            forget(keys, "alice", receipts=path, requested_by="test")
    assert keys.find(key.id) is None
    (problem,) = check_receipts(path)
    assert "forget it again" in problem
    receipt = forget(keys, "alice", receipts=path, requested_by="test")
    assert receipt["keys"] == [key.id.hex()]
    assert check_receipts(path) == []
    with pytest.raises(KeyStoreError, match="nothing to forget"):
        forget(keys, "alice", receipts=path, requested_by="test")


def test_torn_receipt_is_cut_off(keys: DirectoryKeys, tmp_path: Path) -> None:
    path = tmp_path / "receipts.jsonl"
    forget(keys, "alice", receipts=path, requested_by="test")
    first = path.read_bytes()
    forget(keys, "bob", receipts=path, requested_by="test")
    path.write_bytes(path.read_bytes()[:-20])
    assert forget(keys, "carol", receipts=path, requested_by="test")["number"] == 2
    assert path.read_bytes().startswith(first)
    assert check_receipts(path) == []
    path.write_bytes(path.read_bytes()[:-1])  # only the end of the line is missing
    keys.current("dave")
    assert forget(keys, "dave", receipts=path, requested_by="test")["number"] == 3
    assert check_receipts(path) == []


def test_damaged_receipts_are_noticed_before_keys_are_deleted(
    keys: DirectoryKeys, tmp_path: Path
) -> None:
    key = keys.current("alice")
    path = tmp_path / "receipts.jsonl"
    path.write_text("garbage\n")
    for receipts, message in (
        (path, "line 1 of .* is no intact receipt"),
        (tmp_path / "missing" / "receipts.jsonl", "there is no directory"),
    ):
        with pytest.raises(KeyStoreError, match=message):
            forget(keys, "alice", receipts=receipts, requested_by="test")
    assert keys.find(key.id) == key
