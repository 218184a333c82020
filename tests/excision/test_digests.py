"""Hashes of rows and of directories, for receipts."""

from __future__ import annotations

import hashlib
import hmac
from decimal import Decimal
from pathlib import Path

import pytest

from millstream.errors import MillstreamError
from millstream.excision.digests import Digest, RowsDigest, digest_directory

ALICE = ("alice", {"name": "alice", "city": "Bath"})
BOB = ("bob", {"name": "bob", "city": "Zürich"})


def digest(*rows: tuple[str, dict[str, object]], salt: str = "a1") -> Digest:
    found = RowsDigest(salt)
    found.add(rows)
    return found.result()


def test_hash_is_that_of_the_form_in_the_docs() -> None:
    """Anyone can compute it from the rows and the salt of the receipt."""
    texts = [
        b'["alice",{"city":"Bath","name":"alice"}]',
        b'["bob",{"city":"Z\\u00fcrich","name":"bob"}]',
    ]
    hashes = sorted(hmac.digest(b"a1", it, "sha256") for it in texts)
    expected = hashlib.sha256(b"".join(hashes)).hexdigest()
    assert digest(ALICE, BOB) == {"rows": 2, "sha256": expected}


def test_hash_depends_on_rows_and_salt_but_not_on_their_order() -> None:
    assert digest(BOB, ALICE) == digest(ALICE, BOB)
    assert digest(ALICE, ALICE) != digest(ALICE)
    assert digest(ALICE, salt="b2") != digest(ALICE)
    assert digest(("alice", {"name": "alice", "city": "York"})) != digest(ALICE)
    assert digest() == {"rows": 0, "sha256": hashlib.sha256().hexdigest()}


def test_values_that_json_does_not_have_are_hashed_as_text() -> None:
    assert digest(("1", {"price": Decimal("1.50")})) == digest(("1", {"price": "1.50"}))


def test_hash_of_a_directory_depends_on_names_and_contents(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for root in (here, there):
        (root / "state").mkdir(parents=True)
        (root / "metadata").write_text("{}")
        (root / "state" / "1.delta").write_bytes(b"alice")
    assert digest_directory(here) == digest_directory(there)
    assert {**digest_directory(here), "sha256": ""} == {"files": 2, "bytes": 7, "sha256": ""}
    (there / "state" / "1.delta").rename(there / "state" / "2.delta")
    assert digest_directory(here)["sha256"] != digest_directory(there)["sha256"]
    assert digest_directory(tmp_path / "missing")["files"] == 0


def test_file_that_cannot_be_read_is_not_left_out(tmp_path: Path) -> None:
    (tmp_path / "gone").symlink_to(tmp_path / "missing")
    assert digest_directory(tmp_path)["files"] == 0
    (tmp_path / "state").symlink_to("/proc/self/mem")  # EIO, also for root
    with pytest.raises(MillstreamError, match="state cannot be read"):
        digest_directory(tmp_path)
