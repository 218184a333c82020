"""Databases as readers use them."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ConfigError, StoreError
from millstream.views.databases import open_database


def test_stores_without_snapshots_are_refused() -> None:
    with pytest.raises(ConfigError, match="redis"):
        open_database("redis://localhost")


def test_file_that_is_missing_is_named_and_not_created(tmp_path: Path) -> None:
    file = tmp_path / "none.db"
    with pytest.raises(StoreError, match=r"none\.db"), open_database(f"sqlite:///{file}").session():
        pass
    assert not file.exists()
