"""The shop's books are checked: what customers sent, what the log holds, what pipelines made.

    sent         every order that was acknowledged is in the batch over the log, once
    enriched     the topic against the batch, record by record; alerts in the same way
    sales        the table of the version in force against the batch: orders and revenue of each
                 window and product; interest in the same way
    frauds       the topic against the topic enriched, searched in plain Python
    customers    the view against the batch: what each customer has spent
    dead letters every broken record has one, and nothing else has

What is expected and missing is lost; what is there and not expected, or too often, is doubled. A
record with another content is both.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import Message

from millstream.admin.letters import Letter
from millstream.cli.cluster import Cluster
from millstream.cli.consume import Start, read_beside
from millstream.cli.shop.history import COLUMNS, Rows
from millstream.cli.shop.pipelines import (
    LARGE_AMOUNT,
    SMALL_AMOUNT,
    alerts,
    customers,
    enriched,
    frauds,
    orders,
)
from millstream.cli.shop.traffic import Ledger
from millstream.views import open_views

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FRAUD_WITHIN = 60_000_000  # microseconds, as the pattern says
TRIES_MIN = 3
FRAUD_COLUMNS = ("customer", "id", "tries", "amount")

Amounts = Mapping[Hashable, int]


class Finding(NamedTuple):
    """One thing that was compared."""

    what: str
    expected: int
    found: int
    lost: int
    doubled: int

    @property
    def holds(self) -> bool:
        return self.lost == self.doubled == 0


class Verdict(NamedTuple):
    """All that was compared, and the sum of it."""

    sent: int
    counted: int
    findings: list[Finding]

    @property
    def lost(self) -> int:
        return sum(it.lost for it in self.findings)

    @property
    def doubled(self) -> int:
        return sum(it.doubled for it in self.findings)

    @property
    def holds(self) -> bool:
        return self.sent == self.counted and all(it.holds for it in self.findings)


class Made(NamedTuple):
    """What the pipelines made, in the form of `history.COLUMNS`; topics in their order."""

    rows: Mapping[str, Rows]
    dead_letters: set[tuple[int, int]]  # partition and offset of the broken records


def compare(what: str, expected: Amounts, found: Amounts) -> Finding:
    """How much of what is expected is missing, and how much there is beyond it."""
    differences = [
        found.get(key, 0) - expected.get(key, 0) for key in expected.keys() | found.keys()
    ]
    return Finding(
        what,
        expected=sum(expected.values()),
        found=sum(found.values()),
        lost=sum(-it for it in differences if it < 0),
        doubled=sum(it for it in differences if it > 0),
    )


def judge(ledger: Ledger, history: Mapping[str, Rows], made: Made) -> Verdict:
    """The ledger against the batch, and the batch against what the pipelines made."""

    def compare_amounts(what: str, name: str, column: int) -> Finding:
        return compare(what, amounts(history[name], column), amounts(made.rows[name], column))

    findings = [
        compare(
            "sent, in the log",
            Counter(ledger.orders),
            Counter(row[0] for row in history["enriched"]),
        ),
        compare("topic enriched", counted(history["enriched"]), counted(made.rows["enriched"])),
        compare("topic alerts", counted(history["alerts"]), counted(made.rows["alerts"])),
        compare_amounts("table sales: orders", "sales", 2),
        compare_amounts("table sales: revenue", "sales", 3),
        compare_amounts("table interest: views", "interest", 2),
        compare("topic frauds", find_frauds(made.rows["enriched"]), counted(made.rows["frauds"])),
        compare("view customers: spent", spending(history["enriched"]), spent_by_view(made)),
        compare(
            "page views sent", {"views": ledger.views}, {"views": total(made.rows["interest"], 2)}
        ),
        compare("dead letters", Counter(ledger.poison), Counter(made.dead_letters)),
    ]
    return Verdict(len(ledger.orders), total(made.rows["sales"], 2), findings)


def counted(rows: Iterable[Sequence[Any]]) -> Counter[Hashable]:
    return Counter(tuple(row) for row in rows)


def amounts(rows: Rows, column: int) -> Amounts:
    """One column by window and product."""
    return {(since, product): row[column - 2] for since, product, *row in rows}


def total(rows: Rows, column: int) -> int:
    return sum(row[column] for row in rows)


def find_frauds(enriched: Rows) -> Counter[Hashable]:
    """Small orders of a customer, and directly after them a large one, within a minute."""
    by_customer: dict[str, list[tuple[int, int, int]]] = {}
    found: Counter[Hashable] = Counter()
    for number, customer, _, _, amount, at in enriched:
        small = by_customer.setdefault(customer, [])
        if amount < SMALL_AMOUNT:
            small.append((number, amount, at))
            continue
        if amount >= LARGE_AMOUNT:
            for first in range(len(small) - TRIES_MIN + 1):
                times = [*(it[2] for it in small[first:]), at]
                if max(times) < times[0] + FRAUD_WITHIN:
                    found[customer, number, len(small) - first, amount] += 1
                    break
        small.clear()
    return found


def spending(enriched: Rows) -> Amounts:
    """What each customer has spent."""
    spent: Counter[Hashable] = Counter()
    for _, customer, _, _, amount, _ in enriched:
        spent[customer] += amount
    return spent


def spent_by_view(made: Made) -> Amounts:
    return {row[0]: row[1] for row in made.rows["customers"]}


# What the pipelines made


def read_made(address: str, store: Path) -> Made:
    cluster = Cluster(address)
    rows = {
        "enriched": topic_rows(cluster, enriched.name, COLUMNS["enriched"]),
        "alerts": topic_rows(cluster, alerts.name, COLUMNS["alerts"]),
        "frauds": topic_rows(cluster, frauds.name, FRAUD_COLUMNS),
        "sales": table_rows(store, "select since, product, orders, revenue from sales"),
        "interest": table_rows(store, "select since, product, views from interest"),
        "customers": view_rows(store),
    }
    has_letters = orders.dead_letters in cluster.metadata().topics
    letters = map(
        Letter.of_message, read_topic(cluster, orders.dead_letters) if has_letters else ()
    )
    origins = [it.origin for it in letters if it.origin is not None]
    return Made(rows, {(it.partition, it.offset) for it in origins})


def read_topic(cluster: Cluster, topic: str) -> Iterable[Message]:
    """All that readers of what is committed see."""
    consumer = cluster.consumer(
        **{"isolation.level": "read_committed", "enable.partition.eof": True}
    )
    try:
        start = Start(beginning=True)
        for message in read_beside(cluster, consumer, [topic], None, start, follow=False):
            if message is not None:
                yield message
    finally:
        consumer.close()


def topic_rows(cluster: Cluster, topic: str, columns: Sequence[str]) -> Rows:
    """The records of a topic, each in the order of the columns."""
    rows = []
    for record in read_topic(cluster, topic):
        fields = json.loads(record.value())
        if "at" in fields:
            fields["unix_micros(at)"] = micros(fields["at"])
        rows.append([fields[it] for it in columns])
    return rows


def table_rows(store: Path, query: str) -> Rows:
    """The rows of a table; its first column is a moment."""
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
        return [[micros(since), *rest] for since, *rest in connection.execute(query)]


def view_rows(store: Path) -> Rows:
    """What each customer has spent, by the view."""
    views = open_views(f"sqlite:///{store}", customers.name)
    with views, views.read() as v:
        return [[it["customer"], it["spent"]] for it in v["customers"].range()]


def micros(moment: str) -> int:
    """Since 1970; a moment that does not say where is in UTC."""
    parsed = datetime.fromisoformat(moment)
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)
