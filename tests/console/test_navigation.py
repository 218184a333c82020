"""The navigation."""

from __future__ import annotations

from millstream.console.navigation import NAVIGATION


def test_entries_differ() -> None:
    for part in ("module", "title", "path", "shortcut"):
        values = [getattr(entry, part) for entry in NAVIGATION]
        assert len(set(values)) == len(values)
