"""The events: their proportions, hot keys and order, and that the seed alone makes them."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from examples.nexmark.generator import SCHEMAS, Generator, Settings, Tables
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.drawing import draws

MANY = Settings(events=100_000, seed=7)
FEW = Settings(events=3_000, seed=7, events_per_second=100)  # delays of up to 300 events


@pytest.fixture(scope="module")
def many() -> Tables:
    return Generator(MANY).tables()


@pytest.fixture(scope="module")
def few() -> Generator:
    return Generator(FEW)


def numbers(table: pa.Table, column: str) -> Any:
    return table[column].to_numpy()


def milliseconds(table: pa.Table, column: str) -> Any:
    return table[column].cast(pa.int64()).to_numpy() // 1000


def joined(batches: list[Any]) -> Tables:
    kinds = ([batch[place] for batch in batches] for place in range(len(SCHEMAS)))
    return Tables(*map(pa.Table.from_batches, kinds, SCHEMAS))


def same(left: Tables, right: Tables) -> bool:
    return all(a.equals(b) for a, b in zip(left, right, strict=True))


def test_kinds_stand_in_the_proportion_of_the_benchmark(many: Tables) -> None:
    assert [table.num_rows for table in many] == [2_000, 6_000, 92_000]


def test_every_person_and_auction_has_an_id_of_its_own(many: Tables) -> None:
    assert sorted(numbers(many.person, "id")) == list(range(1_000, 3_000))
    assert sorted(numbers(many.auction, "id")) == list(range(1_000, 7_000))


@pytest.mark.parametrize("batch_size", [19, 299, 4_096, 1 << 17])
def test_events_do_not_depend_on_the_size_of_batches(few: Generator, batch_size: int) -> None:
    assert same(joined(list(few.batches(batch_size))), few.tables())


@settings(max_examples=draws(30))
@given(cuts=st.lists(st.integers(1, 3_299), unique=True, max_size=6))
def test_any_part_of_the_stream_can_be_made_alone(few: Generator, cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), FEW.events + FEW.delay_max_events]
    parts = [few.arriving(first, end) for first, end in pairwise(bounds)]
    assert same(joined(parts), few.tables())


def test_longer_stream_begins_with_the_shorter_one(few: Generator) -> None:
    longer = Generator(Settings(events=6_000, seed=7, events_per_second=100))
    end = FEW.events  # what arrives before this event happens does not know how many follow
    assert same(joined([longer.arriving(0, end)]), joined([few.arriving(0, end)]))


def test_seed_decides_all(few: Generator) -> None:
    other = Settings(events=3_000, seed=8, events_per_second=100)
    assert same(Generator(FEW).tables(), few.tables())
    for table, changed in zip(few.tables(), Generator(other).tables(), strict=True):
        for column in {"extra", "price", "arrival"} & set(table.column_names):
            assert not table[column].equals(changed[column])


def test_events_of_a_seed_are_those_of_yesterday(few: Generator) -> None:
    """Results name a seed: whoever changes its events changes this, knowingly."""
    columns = (column for table in few.tables() for column in table.itercolumns())
    digest = hashlib.sha256()
    for column in columns:
        is_time = pa.types.is_timestamp(column.type)
        digest.update(repr((column.cast(pa.int64()) if is_time else column).to_pylist()).encode())
    assert digest.hexdigest()[:16] == "4674451258559c74"


def test_references_lead_to_what_exists_by_then(many: Tables) -> None:
    opened = dict(
        zip(numbers(many.auction, "id"), milliseconds(many.auction, "dateTime"), strict=True)
    )
    joined_at = dict(
        zip(numbers(many.person, "id"), milliseconds(many.person, "dateTime"), strict=True)
    )
    for table, column, existing in (
        (many.bid, "auction", opened),
        (many.bid, "bidder", joined_at),
        (many.auction, "seller", joined_at),
    ):
        since = np.array([existing[number] for number in numbers(table, column)])
        assert (since <= milliseconds(table, "dateTime")).all()


def test_events_arrive_within_the_bound_of_disorder(many: Tables) -> None:
    happened = np.concatenate([milliseconds(table, "dateTime") for table in many])
    arrived = np.concatenate([milliseconds(table, "arrival") for table in many])
    order = np.argsort(arrived, kind="stable")
    behind = np.maximum.accumulate(happened[order]) - happened[order]
    assert behind.max() <= MANY.delay_max_ms
    assert behind.max() > 0.9 * MANY.delay_max_ms  # the bound is used, not only kept
    assert (arrived >= happened).all()
    assert np.mean(arrived > happened) == pytest.approx(MANY.delayed_share, abs=0.01)


def test_rows_of_a_kind_stand_in_the_order_of_arrival(many: Tables) -> None:
    for table in many:
        assert (np.diff(milliseconds(table, "arrival")) >= 0).all()


@pytest.mark.parametrize("calm", [{"delay_max_ms": 0}, {"delayed_share": 0.0}])
def test_events_without_delay_arrive_as_they_happen(calm: dict[str, Any]) -> None:
    for table in Generator(Settings(events=1_000, **calm)).tables():
        assert table["arrival"].equals(table["dateTime"])
        assert (np.diff(milliseconds(table, "dateTime")) >= 0).all()


def test_all_events_can_be_late() -> None:
    settings = Settings(events=1_000, delayed_share=1.0)
    assert sum(table.num_rows for table in Generator(settings).tables()) == settings.events


def test_event_time_follows_the_rate() -> None:
    settings = Settings(events=500, events_per_second=200, delay_max_ms=0, starts_at_ms=5)
    times = np.concatenate(
        [milliseconds(table, "dateTime") for table in Generator(settings).tables()]
    )
    assert sorted(times) == [5 + number * 5 for number in range(500)]


def test_hot_keys_have_their_share(many: Tables) -> None:
    place = {
        "auction": (numbers(many.bid, "auction") - 1_000) % 100 == 0,
        "bidder": (numbers(many.bid, "bidder") - 1_000) % 100 == 1,
        "seller": (numbers(many.auction, "seller") - 1_000) % 100 == 0,
    }
    shares = {name: np.mean(hot) for name, hot in place.items()}
    assert shares == pytest.approx({"auction": 0.505, "bidder": 0.7525, "seller": 0.7525}, abs=0.02)


def test_bids_that_are_not_hot_go_to_auctions_in_flight(many: Tables) -> None:
    number = milliseconds(many.bid, "dateTime") - MANY.starts_at_ms  # ten events in a millisecond
    newest = number * 10 // 50 * 3
    behind = newest - (numbers(many.bid, "auction") - 1_000)
    assert behind.max() <= 100
    assert behind.min() >= -2 - 3


def test_prices_are_spread_over_six_decades(many: Tables) -> None:
    logs = np.log10(numbers(many.bid, "price") / 100)
    counts, _ = np.histogram(logs, bins=6, range=(0, 6))
    assert counts.sum() == many.bid.num_rows
    assert counts / many.bid.num_rows == pytest.approx(np.full(6, 1 / 6), abs=0.01)


def test_channels_and_categories_have_their_shares(many: Tables) -> None:
    bids = many.bid.select(["channel", "url"]).to_pylist()
    hot = [bid for bid in bids if not bid["channel"].startswith("channel-")]
    others = {(bid["channel"], bid["url"]) for bid in bids if bid["channel"].startswith("channel-")}
    assert len(hot) / len(bids) == pytest.approx(0.5, abs=0.01)
    assert set(Counter(bid["channel"] for bid in hot)) == {"Google", "Facebook", "Baidu", "Apple"}
    assert len({bid["url"] for bid in hot}) == 4
    assert len({channel for channel, _ in others}) == len(others)  # one URL each
    named = sum("&channel_id=" in url for _, url in others) / len(others)
    assert named == pytest.approx(0.9, abs=0.02)
    assert {url.count("/") for _, url in others} == {6}
    categories = Counter(numbers(many.auction, "category").tolist())
    assert set(categories) == {10, 11, 12, 13, 14}
    assert min(categories.values()) > 0.18 * many.auction.num_rows


def test_auctions_are_open_as_long_as_others_are_in_flight(many: Tables) -> None:
    open_ms = milliseconds(many.auction, "expires") - milliseconds(many.auction, "dateTime")
    assert open_ms.min() >= 1
    assert open_ms.max() <= 1 + 2 * 167
    assert open_ms.mean() == pytest.approx(167, rel=0.05)
    assert (numbers(many.auction, "reserve") > numbers(many.auction, "initialBid")).all()


@pytest.mark.parametrize(
    ("kind", "fixed_bytes", "average_bytes"),
    [("person", 8, 200), ("auction", 48, 500), ("bid", 32, 100)],
)
def test_events_have_the_size_of_the_benchmark(
    many: Tables, kind: str, fixed_bytes: int, average_bytes: int
) -> None:
    table = getattr(many, kind)
    counted = [it.name for it in table.schema if it.type == pa.string()]
    if kind == "bid":
        counted = ["extra"]  # channel and url came later, and on top
    texts = sum(len(text) for name in counted for text in table[name].to_pylist())
    assert fixed_bytes + texts / table.num_rows == pytest.approx(average_bytes, rel=0.02)


def test_stream_of_no_events_has_empty_tables() -> None:
    assert [table.num_rows for table in Generator(Settings(events=0)).tables()] == [0, 0, 0]


@pytest.mark.parametrize(
    "wrong",
    [{"events": -1}, {"events_per_second": 0}, {"delay_max_ms": -1}, {"delayed_share": 1.5}],
)
def test_settings_refuse_what_makes_no_stream(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        Settings(**{"events": 1, **wrong})
