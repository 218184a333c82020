"""`millstream rollback`: readers read the version before."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.versions_scene import two_versions


def test_rollback_moves_readers_back(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = two_versions(tmp_path)
    assert "no version of revenue to go back to" in run("rollback", "revenue").err
    assert run("switch", "revenue", "2").exit_code == 0
    outcome = run("rollback", "revenue")
    assert outcome.exit_code == 0, outcome.err
    assert database.rows("SELECT total FROM revenue WHERE day = 'monday'") == [(1.0,)]
