"""How the demo looks, of a shop that is told what it has seen."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator

import pytest
from rich.console import Console, RenderableType

from millstream.cli.shop.audit import Finding, Verdict
from millstream.cli.shop.catalogue import CatalogueLook
from millstream.cli.shop.run import ShopRun
from millstream.cli.shop.screen import line_of, screen_of, spark_line, verdict_panel
from millstream.cli.shop.story import Story
from millstream.cli.shop.watching import ALL, Leader, Look, Position, Product


@pytest.fixture
def story() -> Iterator[Story]:
    with ShopRun(rate=1, seed=1) as run:
        run.customers.ledger.orders |= set(range(1200))
        run.customers.ledger.poison |= {(0, 1), (0, 2)}
        run.desk.reasons = Counter({"wrong type": 2})
        run.desk.last_alerts.append("ada: rug for 1,920")
        run.desk.last_frauds.append("bob: 3 small, then 1,950")
        look = Look(
            [Position("enrich", 1000, 200), Position("sales", 900, 100)],
            [Product("lamp", 30, 1200, 77), Product("mug", 3, 36, 9)],
            [Leader("eve", 7, 6400)],
        )
        told = Story(run, seconds=1, look=look)
        told.tell("it begins")
        yield told


def shown(what: RenderableType) -> str:
    screen = Console(width=120, file=io.StringIO(), record=True)
    screen.print(what)
    return screen.export_text()


def test_screen_shows_rates_lags_products_alerts_and_dead_letters(story: Story) -> None:
    text = shown(screen_of(story))
    for words in (
        "1,200",
        "2 broken",
        "enrich",
        "200",
        "lamp",
        "77",
        "rug for 1,920",
        "eve",
        "6,400",
    ):
        assert words in text
    assert "2 wrong type" in text
    assert "3 small, then 1,950" in text
    assert "sales@2" not in text


def test_screen_shows_a_second_version_once_it_is_deployed(story: Story) -> None:
    story.run.watcher.watched = ALL
    story.look.positions.append(Position("sales@2", 700, 300))
    assert "sales@2" in shown(screen_of(story))


def test_screen_shows_events(story: Story) -> None:
    text = shown(screen_of(story))
    assert "it begins" in text


def test_screen_shows_how_the_catalogue_is_followed(story: Story) -> None:
    assert "CATALOGUE" not in shown(screen_of(story))
    assert "products" not in line_of(story)
    story.catalogue = CatalogueLook(312, {"index": 41, "table": 42}, ("desk red", "mug blue"))
    text = shown(screen_of(story))
    for words in ("312 changes", "index 41, table 42 products", '"oak": desk red, mug blue'):
        assert words in text
    assert "products: index 41, table 42" in line_of(story)


def test_line_shows_the_same_in_short(story: Story) -> None:
    line = line_of(story)
    assert "1,200 orders" in line
    assert "lag: enrich 200, sales 100" in line


def test_spark_line_is_as_high_as_its_highest() -> None:
    assert spark_line([0, 4, 8]).plain == " ▄█"
    assert spark_line([0, 0]).plain == "  "
    assert spark_line([]).plain == ""


@pytest.mark.parametrize(
    ("findings", "counted", "words"),
    [
        ([Finding("sales", 9, 9, 0, 0)], 9, "every order counted, once"),
        ([Finding("sales", 9, 8, 1, 0)], 8, "the results differ"),
        ([Finding("sales", 9, 10, 0, 1)], 10, "the results differ"),
        ([Finding("sales", 9, 9, 0, 0)], 8, "the results differ"),
    ],
)
def test_verdict_is_what_was_found(findings: list[Finding], counted: int, words: str) -> None:
    text = shown(verdict_panel(Verdict(9, counted, findings)))
    lost, doubled = findings[0].lost, findings[0].doubled
    assert words in text
    assert f"sent 9   counted {counted}   lost {lost}   doubled {doubled}" in text
