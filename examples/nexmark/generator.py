"""The events of Nexmark: people who join, auctions they open, bids they make.

Every value is a function of the seed and of the event's number alone, so the same seed gives the
same events in batches of any size, and any part of the stream can be made without what stands
before it. Nothing is made event by event: columns of numbers by numpy, texts by Arrow's `take`.

The rules are those of the benchmark (github.com/nexmark/nexmark, NexmarkConfiguration and
generator/model; Apache Beam's are the same), written anew:

    kinds       of every 50 events the 1st is a person, 3 are auctions, 46 are bids
    ids         people and auctions count from 1000, categories are 10 to 14
    hot keys    1/2 of the bids go to the newest auction with a number of 100 k, the others to one
                of the last 101; 3/4 of the bids come from the newest person with a number of
                100 k + 1, 3/4 of the auctions from that with 100 k, the others from one of the
                last 1000
    prices      log-uniform from 100 to 100,000,000 (cents)
    channels    1/2 of the bids come through Google, Facebook, Baidu or Apple, with one URL each;
                the others through one of 10,000 channels, of whose URLs 9 in 10 name a channel_id
    durations   an auction is open for as long as 100 others take to open, on average
    sizes       a person has some 200 bytes, an auction 500, a bid 100, filled up by `extra`
    time        event n happens n / rate after the first, in whole milliseconds
    disorder    1 event in 10 arrives late, by up to 3 seconds

Where it differs, for answers that can be checked:

- A bid's auction and bidder and an auction's seller exist when it happens (the original at times
  takes one of ten ids "ahead", and adds 1000 twice to a bidder). What arrives before that which it
  refers to does so by its delay alone.
- Delay is decided per event, and events stand in the order of their arrival, of which the time is
  known: the record's timestamp (see `Batch`). An event is behind the newest event time that arrived
  before it by `delay_max_ms` at most, so a watermark of as much loses nothing.
- Texts are drawn from pools of 16,384, not letter by letter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from examples.nexmark.randomness import Numbers, Texts, field_of, fraction_of, words

PERSON_SHARE, AUCTION_SHARE, BID_SHARE = 1, 3, 46
CYCLE = PERSON_SHARE + AUCTION_SHARE + BID_SHARE
FIRST_ID = 1000
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_EVERY = 100  # one auction, one seller and one bidder of this many is hot while it is the newest
AUCTIONS_IN_FLIGHT = 100
ACTIVE_PEOPLE = 1000
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = [
    "Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland",
    "Bend", "Redmond", "Seattle", "Kent", "Cheyenne",
]  # fmt: skip
FIRST_NAMES = [
    "Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter",
]  # fmt: skip
LAST_NAMES = [
    "Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris",
]  # fmt: skip
HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
OTHER_CHANNELS = 10_000

TIME = pa.timestamp("us", tz="UTC")

PERSON = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("emailAddress", pa.string()),
        ("creditCard", pa.string()),
        ("city", pa.string()),
        ("state", pa.string()),
        ("dateTime", TIME),
        ("extra", pa.string()),
        ("arrival", TIME),
    ]
)
AUCTION = pa.schema(
    [
        ("id", pa.int64()),
        ("itemName", pa.string()),
        ("description", pa.string()),
        ("initialBid", pa.int64()),
        ("reserve", pa.int64()),
        ("dateTime", TIME),
        ("expires", TIME),
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("extra", pa.string()),
        ("arrival", TIME),
    ]
)
BID = pa.schema(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("channel", pa.string()),
        ("url", pa.string()),
        ("dateTime", TIME),
        ("extra", pa.string()),
        ("arrival", TIME),
    ]
)
SCHEMAS = (PERSON, AUCTION, BID)


@dataclass(frozen=True)
class Settings:
    """What makes a stream of events: two with the same settings are the same."""

    events: int
    seed: int = 0
    events_per_second: int = 10_000  # of event time
    starts_at_ms: int = 1_767_225_600_000  # 2026-01-01T00:00:00Z
    delayed_share: float = 0.1
    delay_max_ms: int = 3_000

    def __post_init__(self) -> None:
        if self.events < 0 or self.events_per_second < 1 or self.delay_max_ms < 0:
            raise ValueError(
                "a stream needs events >= 0, events_per_second >= 1 and delay_max_ms >= 0, "
                f"not {self.events}, {self.events_per_second} and {self.delay_max_ms}"
            )
        if not 0 <= self.delayed_share <= 1:
            raise ValueError(f"delayed_share is a part of 1, not {self.delayed_share}")

    @property
    def delay_max_events(self) -> int:
        """How many events happen in the longest delay."""
        return self.delay_max_ms * self.events_per_second // 1000

    def time_ms(self, numbers: Numbers) -> Numbers:
        """When events happen."""
        return self.starts_at_ms + numbers * 1000 // self.events_per_second


class Batch(NamedTuple):
    """Events that arrived one after the other, by kind, each in the order of arrival.

    `arrival` is when the event reaches the log. It is no part of the event, but the timestamp of
    its record; it never falls from row to row, nor from batch to batch.
    """

    person: pa.RecordBatch
    auction: pa.RecordBatch
    bid: pa.RecordBatch


class Tables(NamedTuple):
    """All events of a stream, by kind, in the order of arrival."""

    person: pa.Table
    auction: pa.Table
    bid: pa.Table


def an_hour_later(tables: Tables) -> Batch:
    """One more of each kind, long after all others, which moves time on: whatever was open closes.

    They are the last ones once more, but an auction and a person with ids of their own: no answer
    about what has closed shows them.
    """
    found = []
    for table, schema in zip(tables, SCHEMAS, strict=True):
        times = [it.name for it in schema if it.type == TIME]
        numbers = [it.with_type(pa.int64()) if it.name in times else it for it in schema]
        (row,) = table.slice(table.num_rows - 1).cast(pa.schema(numbers)).to_pylist()
        row |= {name: row[name] + 3_600_000_000 for name in times}
        if "id" in row:
            row["id"] += 1_000_000
        found.append(pa.RecordBatch.from_pylist([row], schema=schema))
    return Batch(*found)


class Generator:
    """Makes the events of some settings; keeps no state but the pools of texts."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._pools = _Pools(settings.seed)

    def batches(self, batch_size: int = 1 << 16) -> Iterator[Batch]:
        """All events as they arrive; a batch has about `batch_size`, the last ones fewer.

        A batch is what arrives while `batch_size` events happen: all that follows it arrives later.
        """
        settings = self.settings
        moments = settings.events + settings.delay_max_events if settings.events else 0
        for first in range(0, moments, batch_size):
            batch = self.arriving(first, min(first + batch_size, moments))
            if sum(kind.num_rows for kind in batch):
                yield batch

    def tables(self) -> Tables:
        """All events at once."""
        found = list(self.batches())
        kinds = ([batch[place] for batch in found] for place in range(len(SCHEMAS)))
        return Tables(*map(pa.Table.from_batches, kinds, SCHEMAS))

    def arriving(self, first: int, end: int) -> Batch:
        """What arrives from when event `first` happens until before event `end` does."""
        numbers, arrivals = self._arrivals(first, end)
        place = numbers % CYCLE
        is_person = place < PERSON_SHARE
        is_bid = place >= PERSON_SHARE + AUCTION_SHARE
        is_auction = ~(is_person | is_bid)
        return Batch(
            self._people(numbers[is_person], arrivals[is_person]),
            self._auctions(numbers[is_auction], arrivals[is_auction]),
            self._bids(numbers[is_bid], arrivals[is_bid]),
        )

    def _arrivals(self, first: int, end: int) -> tuple[Numbers, Numbers]:
        """Numbers of events in the order of arrival, and the numbers at whose time they arrive."""
        settings = self.settings
        longest = settings.delay_max_events
        numbers = np.arange(max(first - longest, 0), min(end, settings.events))
        arrivals = numbers
        if longest and settings.delayed_share:
            drawn = words(settings.seed, "delay", numbers)
            delayed = fraction_of(drawn) < settings.delayed_share
            amounts = 1 + field_of(words(settings.seed, "delay amount", numbers), 0, 32, longest)
            arrivals = numbers + np.where(delayed, amounts, 0)
        here = (arrivals >= first) & (arrivals < end)
        numbers, arrivals = numbers[here], arrivals[here]
        # Those that arrive at the same moment stay in the order in which they happened.
        narrow = np.uint16 if end - first <= 1 << 16 else np.int64  # numpy sorts 16 bits by radix
        order = np.argsort((arrivals - first).astype(narrow), kind="stable")
        return numbers[order], arrivals[order]

    def _people(self, numbers: Numbers, arrivals: Numbers) -> pa.RecordBatch:
        pools = self._pools
        drawn = words(self.settings.seed, "person", numbers)
        texts = words(self.settings.seed, "person texts", numbers)
        columns = [
            FIRST_ID + numbers // CYCLE,
            _taken(pools.person_name, drawn, 0, 20),
            _taken(pools.email, texts, 0, 20),
            _taken(pools.credit_card, texts, 20, 20),
            _taken(pools.city, drawn, 20, 20),
            _taken(pools.state, drawn, 40, 20),
            self._times(numbers),
            _taken(pools.person_extra, texts, 40, 20),
            self._times(arrivals),
        ]
        return pa.RecordBatch.from_arrays([pa.array(it) for it in columns], schema=PERSON)

    def _auctions(self, numbers: Numbers, arrivals: Numbers) -> pa.RecordBatch:
        settings, pools = self.settings, self._pools
        drawn = words(settings.seed, "auction", numbers)
        texts = words(settings.seed, "auction texts", numbers)
        initial_bid = _prices(words(settings.seed, "initial bid", numbers))
        newest_person = numbers // CYCLE
        seller = np.where(
            field_of(drawn, 60, 2, 4) > 0,
            newest_person // HOT_EVERY * HOT_EVERY,
            _among_newest(newest_person, ACTIVE_PEOPLE, drawn, 0),
        )
        columns = [
            FIRST_ID + newest_person * AUCTION_SHARE + numbers % CYCLE - PERSON_SHARE,
            _taken(pools.item_name, texts, 0, 20),
            _taken(pools.description, texts, 20, 20),
            initial_bid,
            initial_bid + _prices(words(settings.seed, "reserve", numbers)),
            self._times(numbers),
            _moments(self._expiry_ms(numbers)),
            FIRST_ID + seller,
            FIRST_CATEGORY + field_of(drawn, 30, 30, CATEGORIES),
            _taken(pools.auction_extra, texts, 40, 20),
            self._times(arrivals),
        ]
        return pa.RecordBatch.from_arrays([pa.array(it) for it in columns], schema=AUCTION)

    def _expiry_ms(self, numbers: Numbers) -> Numbers:
        """Auctions stay open until as many others as are in flight have opened, on average."""
        opens = self.settings.time_ms(numbers)
        ahead = AUCTIONS_IN_FLIGHT * CYCLE // AUCTION_SHARE
        average_ms = self.settings.time_ms(numbers + ahead) - opens
        drawn = fraction_of(words(self.settings.seed, "duration", numbers))
        length: Numbers = (drawn * np.maximum(average_ms * 2, 1)).astype(np.int64)
        return opens + 1 + length

    def _bids(self, numbers: Numbers, arrivals: Numbers) -> pa.RecordBatch:
        seed, pools = self.settings.seed, self._pools
        drawn = words(seed, "bid", numbers)
        texts = words(seed, "bid texts", numbers)
        newest_person = numbers // CYCLE
        newest_auction = newest_person * AUCTION_SHARE + AUCTION_SHARE - 1
        auction = np.where(
            field_of(drawn, 63, 1, 2) > 0,
            newest_auction // HOT_EVERY * HOT_EVERY,
            _among_newest(newest_auction, AUCTIONS_IN_FLIGHT + 1, drawn, 0),
        )
        bidder = np.where(
            field_of(drawn, 60, 2, 4) > 0,
            np.minimum(newest_person // HOT_EVERY * HOT_EVERY + 1, newest_person),
            _among_newest(newest_person, ACTIVE_PEOPLE, drawn, 30),
        )
        is_hot = field_of(texts, 63, 1, 2) > 0
        hot = field_of(texts, 0, 30, len(HOT_CHANNELS))
        other = field_of(texts, 0, 30, OTHER_CHANNELS) + len(HOT_CHANNELS)
        channel = np.where(is_hot, hot, other)
        columns = [
            FIRST_ID + auction,
            FIRST_ID + bidder,
            _prices(words(seed, "price", numbers)),
            pools.channel.take(pa.array(channel)),
            pools.url.take(pa.array(channel)),
            self._times(numbers),
            _taken(pools.bid_extra, texts, 30, 30),
            self._times(arrivals),
        ]
        return pa.RecordBatch.from_arrays([pa.array(it) for it in columns], schema=BID)

    def _times(self, numbers: Numbers) -> pa.Array:
        return _moments(self.settings.time_ms(numbers))


class _Pools:
    """The texts of a seed."""

    def __init__(self, seed: int) -> None:
        plain, spaced, joined = Texts(seed), Texts(seed, " "), Texts(seed, "_")
        self.person_name = pa.array([f"{a} {b}" for a in FIRST_NAMES for b in LAST_NAMES])
        accounts, hosts = plain.pool("account", 3, 6), plain.pool("host", 3, 4)
        self.email = pa.array([f"{a}@{b}.com" for a, b in zip(accounts, hosts, strict=True)])
        self.credit_card = pa.array(_credit_cards(seed))
        self.city, self.state = pa.array(CITIES), pa.array(STATES)
        self.item_name = pa.array(spaced.pool("item name", 3, 19))
        self.description = pa.array(spaced.pool("description", 3, 99))
        # Each fills its event up to the benchmark's size on average, give or take a fifth.
        self.person_extra = pa.array(plain.pool("person extra", 110, 164))
        self.auction_extra = pa.array(plain.pool("auction extra", 312, 468))
        self.bid_extra = pa.array(plain.pool("bid extra", 54, 81))
        others = [f"channel-{number}" for number in range(OTHER_CHANNELS)]
        self.channel = pa.array([*HOT_CHANNELS, *others])
        self.url = pa.array(_urls(seed, joined))


def _credit_cards(seed: int) -> list[str]:
    drawn = words(seed, "credit card", np.arange(1 << 14))
    groups = [field_of(drawn, 16 * part, 16, 10_000).tolist() for part in range(4)]
    return [" ".join(f"{group:04}" for group in card) for card in zip(*groups, strict=True)]


def _urls(seed: int, texts: Texts) -> list[str]:
    """One for each channel, the hot ones first."""
    count = len(HOT_CHANNELS) + OTHER_CHANNELS
    folders = zip(*(texts.pool(f"folder {level}", 3, 4, count) for level in range(3)), strict=True)
    urls = [f"https://www.nexmark.com/{'/'.join(path)}/item.htm?query=1" for path in folders]
    drawn = words(seed, "channel", np.arange(count))
    is_named = (field_of(drawn, 0, 30, 10) > 0).tolist()
    names = field_of(drawn, 32, 32, 1 << 31).tolist()
    for number in range(len(HOT_CHANNELS), count):
        if is_named[number]:
            urls[number] += f"&channel_id={names[number]}"
    return urls


def _taken(pool: pa.Array, drawn: Any, first_bit: int, bits: int) -> pa.Array:
    return pool.take(pa.array(field_of(drawn, first_bit, bits, len(pool))))


def _among_newest(newest: Numbers, count: int, drawn: Any, first_bit: int) -> Numbers:
    """One of the newest `count`, or of all while there are fewer."""
    choices = np.minimum(newest + 1, count)
    return newest - field_of(drawn, first_bit, 30, choices)


def _prices(drawn: Any) -> Numbers:
    prices: Numbers = np.rint(10.0 ** (fraction_of(drawn) * 6.0) * 100.0).astype(np.int64)
    return prices


def _moments(times_ms: Numbers) -> pa.Array:
    return pa.array(times_ms * 1000).view(TIME)
