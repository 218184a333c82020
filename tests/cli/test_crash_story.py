"""How `millstream demo crash` looks; that it holds is tested with the command."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from millstream.cli.crash_run import CrashRun, Verdict
from millstream.cli.crash_story import Story, screen_of, verdict_table


def shown(what: object) -> str:
    screen = Console(width=120, file=io.StringIO(), record=True)
    screen.print(what)
    return screen.export_text()


def test_screen_shows_partitions_and_events() -> None:
    with CrashRun(rate=1) as run:
        run.ledger.ends[2] = 1234
        story = Story(run, seconds=1, kills=1)
        story.tell("it begins")
        text = shown(screen_of(story))
    assert "1,234" in text
    assert "it begins" in text


@pytest.mark.parametrize(
    ("lost", "words"), [(0, "nothing lost, nothing doubled, order kept"), (1, "the results differ")]
)
def test_verdict_is_what_was_found(lost: int, words: str) -> None:
    verdict = Verdict(9, 9 - lost, lost=lost, doubled=0, misplaced=0, disordered=0)
    assert words in shown(verdict_table(verdict))
