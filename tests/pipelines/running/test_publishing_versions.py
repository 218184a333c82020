"""What is published of versions: from the store, and of a comparison, also if it fails."""

from __future__ import annotations

from pathlib import Path

from millstream.admin.pipeline_records import Command, decode, encode
from millstream.pipelines.running.publishing_versions import (
    diff_shown,
    output_diff,
    running_diff,
    versions_shown,
)
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.versions.catalog import open_catalog
from millstream.pipelines.versions.deploying import register
from millstream.pipelines.versions.differences import Diff, Sample
from tests.pipelines.versions.conftest import version_of

COMMAND = Command("c-1", "revenue", "r1", "diff", versions=("1", "2"))


def test_versions_are_those_of_the_store(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert versions_shown(settings, "revenue").versions == ()
    with open_catalog(settings.store_url) as catalog:
        register(catalog, "revenue", version_of("1", topics=("alerts",)))
        register(catalog, "revenue", version_of("2", topics=("alerts",)))
    shown = versions_shown(settings, "revenue")
    assert (shown.in_force, shown.previous, shown.switches) == ("1", None, 0)
    assert [(it.version, it.tables, it.topics) for it in shown.versions] == [
        ("1", ("revenue__v1",), ("alerts",)),
        ("2", ("revenue__v2",), ("alerts.v2",)),
    ]
    assert decode(type(shown), encode(shown)) == shown


def test_comparison_that_is_not_possible_says_why(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, broker="127.0.0.1:1")
    shown = diff_shown(settings, "revenue", COMMAND)
    assert shown.error
    assert not shown.is_equal
    assert (shown.asked, shown.versions, shown.is_running) == ("c-1", ("1", "2"), False)
    assert running_diff("revenue", COMMAND).is_running


def test_difference_is_shown_without_rows() -> None:
    sample = Sample({"day": "monday"}, {"revenue": "x" * 10_000}, None)
    found = output_diff(
        Diff("revenue", (3, 4), (0, 1), (1, 0), 2, {"revenue": 2}, samples=(sample,))
    )
    assert (found.name, found.is_equal, found.rows) == ("table revenue", False, (3, 4))
    assert found.by_column == {"revenue": 2}
    assert b"monday" not in encode(found)
    assert b"xxx" not in encode(found)
    assert output_diff(Diff("alerts", (1, 1), is_topic=True)).name == "topic alerts"
