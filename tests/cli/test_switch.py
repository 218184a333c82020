"""`millstream switch`: readers read another version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.versions_scene import two_versions


def test_switch_moves_readers(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    database = two_versions(tmp_path)
    outcome = run("switch", "revenue", "2")
    assert outcome.exit_code == 0, outcome.err
    assert "version 2 of revenue is in force (before: 1): table revenue" in outcome.out
    assert database.rows("SELECT total FROM revenue WHERE day = 'monday'") == [(2.0,)]
    outcome = run("switch", "revenue", "2")
    assert (outcome.exit_code, "is in force already" in outcome.err) == (1, True)
