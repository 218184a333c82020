"""`millstream prepare` where nothing is left to do, and where it cannot write."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from millstream.pipelines.running.class_archive import archive_path
from tests.cli.conftest import Run

pytest.importorskip("pyspark")


def test_prepared_environment_is_left_alone(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    archive_path().parent.mkdir(parents=True)
    archive_path().write_bytes(b"classes")
    archive_path().with_suffix(".json").write_text("{}")
    outcome = run("prepare")
    assert outcome.exit_code == 0
    assert f"already prepared: {archive_path()}" in outcome.err.replace("\n", "")
    assert archive_path().read_bytes() == b"classes"


def test_environment_that_is_read_only_is_an_error_with_its_cure(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "environment").write_text("no directory can be created below a file")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    outcome = run("prepare")
    assert outcome.exit_code == 1
    assert "as the owner of this Python environment" in outcome.err.replace("\n", " ")
