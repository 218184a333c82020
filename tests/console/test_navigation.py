"""The navigation."""

from __future__ import annotations

from millstream.console.navigation import NAVIGATION, modules_of


def test_entries_differ() -> None:
    for part in ("module", "title", "path", "shortcut"):
        values = [getattr(entry, part) for entry in NAVIGATION]
        assert len(set(values)) == len(values)


def test_modules_are_found_by_the_first_part_of_a_path() -> None:
    assert modules_of("") == modules_of("history") == ["overview"]
    assert modules_of("topics")[0] == "topics"
    assert "messages" in modules_of("topics")
    assert modules_of("log-out") == ["log_in"]
    assert {entry.module for entry in NAVIGATION} < set(modules_of("no-such-page"))
