"""Stores by their address."""

from __future__ import annotations

from pathlib import Path

from millstream.shredding.directory import DirectoryKeys
from millstream.shredding.opening import open_keys


def test_directory_is_opened_by_path_and_by_url(tmp_path: Path) -> None:
    key = open_keys(str(tmp_path / "keys")).current("alice")
    opened = open_keys(f"file://{tmp_path}/keys")
    assert isinstance(opened, DirectoryKeys)
    assert opened.find(key.id) == key
