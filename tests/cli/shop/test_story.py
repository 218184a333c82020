"""What happens in the demo, as far as it is told without Spark."""

from __future__ import annotations

import pytest

from millstream.cli.failures import CommandFailed
from millstream.cli.shop import story as story_module
from millstream.cli.shop.run import ShopRun
from millstream.cli.shop.story import SERIES, Rates, Story
from millstream.cli.shop.watching import Look, Position


def test_rates_are_differences_over_time() -> None:
    rates = Rates()
    for now, count in ((10.0, 100), (11.0, 400), (12.0, 400), (13.0, 1000)):
        rates.take(now, dict.fromkeys(SERIES, count))
    assert list(rates.history["orders"]) == [300, 0, 600]
    assert rates.of("orders") == 300
    assert Rates().of("views") == 0


def test_story_passes_the_time_and_looks_around() -> None:
    with ShopRun(rate=200, seed=1) as run:
        run.open()
        story = Story(run, seconds=1)
        for _ in story.pass_time(1.5):
            pass
        for _ in story.wait_for(lambda: bool(story.rates.history["orders"]), "a second look"):
            pass
        watched = [it.pipeline for it in story.look.positions]
        assert watched == ["enrich", "sales", "interest"]


def test_second_version_has_caught_up_when_it_has_read_as_much_as_the_first() -> None:
    with ShopRun(rate=1, seed=1) as run:
        for first, second, expected in ((0, 0, False), (9, 8, False), (9, 9, True)):
            look = Look([Position("sales", first, 0), Position("sales@2", second, 0)])
            assert Story(run, seconds=1, look=look).has_caught_up is expected


def test_story_goes_on_without_a_database() -> None:
    with ShopRun(rate=1, seed=1) as run:
        run.catalogue.missing = "PostgreSQL is not installed"
        story = Story(run, seconds=1)
        story.start_catalogue()
        assert list(story.open_catalogue()) == []
        story.restart_catalogue()
        (event,) = story.events
        assert "without a database and its search index: PostgreSQL is not" in event.plain


def test_story_ends_with_what_it_waited_for_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(story_module, "PATIENCE_S", 0.3)
    with ShopRun(rate=1, seed=1) as run:
        run.open()
        (run.directory / "run.log").write_text("starting\nno space left\n")
        with pytest.raises(CommandFailed, match="the tide did not come in 0 s: no space left"):
            list(Story(run, seconds=1).wait_for(lambda: False, "the tide"))
