"""How an output of two versions differs."""

from __future__ import annotations

from millstream.pipelines.versions.differences import Diff


def test_outputs_with_open_or_deleted_rows_only_are_equal() -> None:
    found = Diff("alerts", (3, 4), open_rows=(0, 1)).without(0, 7)
    assert found.is_equal
    assert found.deleted == (0, 7)
    assert not Diff("alerts", (3, 4), only=(0, 1)).is_equal
    assert not Diff("alerts", (3, 3), differing=1).is_equal
