"""`millstream diff`: rows that differ, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cli.diff import sample_line
from millstream.pipelines.versions.catalog import Work, open_catalog
from millstream.pipelines.versions.registry import note_operators
from tests.cli.conftest import Run
from tests.cli.versions_scene import two_versions
from tests.peers.servers import free_port


def test_rows_that_differ_are_shown(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    two_versions(tmp_path)
    monkeypatch.setattr("millstream.pipelines.versions.differing.topic_ends", lambda *_: {})
    outcome = cli("diff", "revenue", "1", "2")
    assert outcome.exit_code == 1, outcome.err
    assert "table revenue: different" in outcome.out
    assert "day monday: total 1.0 -> 2.0" in outcome.out
    found = json.loads(cli("diff", "revenue", "1", "2", "--json").out)
    assert found["tables"][0]["by_column"] == {"total": 1}
    assert found["cut"] == {"orders": {"0": 10}}
    assert "cannot be compared with itself" in cli("diff", "revenue", "1", "1").err


def test_broker_that_cannot_be_reached_is_reported(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    two_versions(tmp_path)
    monkeypatch.setattr("millstream.pipelines.running.topics.CONNECT_SECONDS", 0.2)
    nowhere = f"127.0.0.1:{free_port()}"
    outcome = run("diff", "revenue", "1", "2", "--bootstrap-server", nowhere)
    assert outcome.exit_code == 3
    assert f"no broker answers at {nowhere}" in outcome.err
    assert "start one with `millstream serve`" in outcome.err


def test_results_that_depend_on_arrival_are_warned_of(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    database = two_versions(tmp_path)
    with open_catalog(database.url) as catalog:

        def note(work: Work) -> None:
            document = work.load("revenue")
            assert document is not None
            work.save(note_operators(document, "2", ["enrich"]))

        catalog.run(note, "note operators")
    monkeypatch.setattr("millstream.pipelines.versions.differing.topic_ends", lambda *_: {})
    outcome = cli("diff", "revenue", "1", "2")
    assert "results of enrich depend on when records arrived: version 2" in outcome.err


def test_row_of_one_version_is_shown_with_its_values() -> None:
    versions = ("1", "2")
    assert sample_line({"id": 3}, None, {"n": 4}, versions) == "  id 3: only in version 2 (n 4)"
    assert sample_line({}, {"n": 4}, None, versions) == "  only in version 1 (n 4)"
