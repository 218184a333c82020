"""`millstream versions`: lists and removes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cli.versions import settings_here
from tests.cli.conftest import Run
from tests.cli.versions_scene import two_versions


def test_versions_are_listed(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run("versions", "list")
    assert outcome.exit_code == 1
    assert "no pipeline is deployed to sqlite:///" in outcome.err
    assert "run this command in the directory of FILE.py" in outcome.err
    two_versions(tmp_path)
    outcome = run("versions", "list", "revenue", "--json")
    found = json.loads(outcome.out)
    assert [(it["version"], it["in_force"], it["behind"]) for it in found] == [
        ("1", True, 0),
        ("2", False, 0),
    ]
    assert "caught up" in run("versions", "list").out


def test_removal_asks_first(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    two_versions(tmp_path)
    outcome = run("versions", "remove", "revenue", "1", "--yes")
    assert outcome.exit_code == 1
    assert "is in force: switch to another one first" in outcome.err


def test_broker_is_where_a_run_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MILLSTREAM_BOOTSTRAP_SERVERS", raising=False)
    assert settings_here(None, None, None).broker == "127.0.0.1:9092"
    assert settings_here("other:1", None, None).broker == "other:1"
