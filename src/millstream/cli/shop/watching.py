"""What can be seen of the shop from outside: groups, topics and the store, as any tool sees them.

`Watcher.look` is a snapshot of the pipelines and their tables; a `Desk` follows what somebody in
the shop should look at, alerts and dead letters.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Message

from millstream.admin.groups import committed_offsets
from millstream.admin.letters import Letter
from millstream.cli.cluster import Cluster
from millstream.cli.shop import sales_2
from millstream.cli.shop.pipelines import (
    alerts,
    customers,
    enrich,
    fraud,
    frauds,
    interest,
    orders,
    sales,
)
from millstream.client.transactions import open_transactions
from millstream.errors import MillstreamError
from millstream.pipelines.spec import PipelineSpec
from millstream.views import Stamp, open_views

FIRST = (enrich, sales, interest)  # what the shop opens with
ADDED = (fraud, customers)  # what it goes on with, after the crash
SECOND = sales_2.sales
ALL = (*FIRST, *ADDED, SECOND)
POLL_S = 0.2
METADATA_EVERY_MS = 1000  # the topic of dead letters is made with the first one
NOTES_KEPT = 3
TOP_PRODUCTS = """
    select product, orders, revenue, coalesce(views, 0)
    from (select product, sum(orders) as orders, sum(revenue) as revenue from sales group by 1)
    left join (select product, sum(views) as views from interest group by 1) using (product)
    order by revenue desc
"""
LEADERS = "select customer, orders, spent from customers order by spent desc, customer limit 5"


class Position(NamedTuple):
    """How far a pipeline has read, in all partitions together."""

    pipeline: str
    done: int
    lag: int


class Product(NamedTuple):
    """How a product sells, by the tables."""

    name: str
    orders: int
    revenue: int
    views: int


class Leader(NamedTuple):
    """A customer who has spent much, by the view."""

    customer: str
    orders: int
    spent: int


@dataclass(frozen=True)
class Look:
    """What was seen at one moment."""

    positions: list[Position] = field(default_factory=list)
    products: list[Product] = field(default_factory=list)
    leaders: list[Leader] = field(default_factory=list)

    @property
    def lag(self) -> int:
        return sum(it.lag for it in self.positions)

    def has_passed(self, other: Look) -> bool:
        """Whether each pipeline has completed a batch since then."""
        before = {it.pipeline: it.done for it in other.positions}
        return bool(self.positions) and all(
            it.done > before.get(it.pipeline, 0) for it in self.positions
        )


class Watcher:
    """Looks at the shop through the broker and the store."""

    def __init__(self, address: str, store: Path) -> None:
        self.cluster = Cluster(address)
        self.store = store
        self.watched: tuple[PipelineSpec, ...] = FIRST
        self._views = open_views(f"sqlite:///{store}", customers.name)
        self._stamp: Stamp | None = None  # of the last look: the next one does not go back

    def look(self) -> Look:
        # Those who read what others write come last: no lag is then seen of none at all.
        positions = [self._position(it) for it in self.watched]
        return Look(positions, top_products(self.store), self._leaders())

    def _leaders(self) -> list[Leader]:
        """Who has spent most, as the view says; nothing while there is none."""
        try:
            with self._views.read(at_least=self._stamp, timeout=0) as v:
                self._stamp = v.stamp
                return [Leader(**it) for it in v.sql(LEADERS)]
        except MillstreamError:
            return []

    def close(self) -> None:
        self._views.close()

    def _position(self, pipeline: PipelineSpec) -> Position:
        committed = committed_offsets(self.cluster.protocol, pipeline.group_id)
        (read,) = pipeline.reads.values()
        places = [(read.name, index) for index in range(read.partitions)]
        done = sum(committed.get(place, 0) for place in places)
        ends = self.cluster.end_offsets(places)
        return Position(pipeline.identity, done, sum(ends.values()) - done)

    def open_transactions(self) -> int:
        """How many tasks are writing at this moment; or were, when they were killed."""
        return len(open_transactions(self.cluster.protocol, ""))


def top_products(store: Path) -> list[Product]:
    """Best first; nothing while there are no tables."""
    try:
        with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
            return [Product(*row) for row in connection.execute(TOP_PRODUCTS)]
    except sqlite3.OperationalError:
        return []


class Desk(threading.Thread):
    """Reads alerts and dead letters as they come."""

    def __init__(self, address: str) -> None:
        super().__init__(name="desk", daemon=True)
        self.alerts = 0
        self.frauds = 0
        self.reasons: Counter[str] = Counter()
        self.last_alerts: deque[str] = deque(maxlen=NOTES_KEPT)
        self.last_frauds: deque[str] = deque(maxlen=NOTES_KEPT)
        self.last_letters: deque[str] = deque(maxlen=NOTES_KEPT)
        self._seen: set[bytes] = set()
        self._stopping = threading.Event()
        self._consumer = Cluster(address).consumer(
            **{
                "group.id": "desk",
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "topic.metadata.refresh.interval.ms": METADATA_EVERY_MS,
            }
        )

    @property
    def letters(self) -> int:
        return len(self._seen)

    def run(self) -> None:
        letters = f"^{orders.dead_letters.replace('.', '[.]')}$"
        self._consumer.subscribe([alerts.name, frauds.name, letters])
        while not self._stopping.is_set():
            message = self._consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                self.take(message)
        self._consumer.close()

    def take(self, message: Message) -> None:
        if message.topic() == alerts.name:
            alert = json.loads(message.value())
            self.alerts += 1
            self.last_alerts.append("{customer}: {product} for {amount:,}".format(**alert))
        elif message.topic() == frauds.name:
            found = json.loads(message.value())
            self.frauds += 1
            self.last_frauds.append("{customer}: {tries} small, then {amount:,}".format(**found))
        elif message.key() not in self._seen:  # a batch that runs again writes its letters again
            self._seen.add(message.key())
            letter = Letter.of_message(message)
            self.reasons[letter.reason] += 1
            self.last_letters.append(letter.error("message") or letter.reason)

    def stop(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join()
