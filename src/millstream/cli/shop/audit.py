"""The shop's books are checked: what customers sent, what the log holds, what pipelines made.

    sent         every order that was acknowledged is in the batch over the log, once
    enriched     the topic against the batch, record by record; alerts in the same way
    sales        the table against the batch: orders and revenue of each window and product;
                 interest in the same way
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

from millstream.cli.cluster import Cluster
from millstream.cli.consume import Start, read_beside
from millstream.cli.letters import Letter
from millstream.cli.shop.history import COLUMNS, Rows
from millstream.cli.shop.pipelines import alerts, enriched, orders
from millstream.cli.shop.traffic import Ledger

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

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
    """What the pipelines made, in the form of `history.COLUMNS`."""

    rows: Mapping[str, Rows]
    dead_letters: set[tuple[int, int]]  # partition and offset of the records that they tell of


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
        compare("views sent", {"views": ledger.views}, {"views": total(made.rows["interest"], 2)}),
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


# What the pipelines made


def read_made(address: str, store: Path) -> Made:
    cluster = Cluster(address)
    rows = {
        "enriched": [record_row(it, "enriched") for it in read_topic(cluster, enriched.name)],
        "alerts": [record_row(it, "alerts") for it in read_topic(cluster, alerts.name)],
        "sales": table_rows(store, "select since, product, orders, revenue from sales"),
        "interest": table_rows(store, "select since, product, views from interest"),
    }
    has_letters = orders.dead_letters in cluster.metadata().topics
    letters = map(Letter, read_topic(cluster, orders.dead_letters) if has_letters else ())
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


def record_row(record: Message, name: str) -> list[Any]:
    """A record of a topic in the order of its columns."""
    fields = json.loads(record.value())
    if "at" in fields:
        fields["unix_micros(at)"] = micros(fields["at"])
    return [fields[column] for column in COLUMNS[name]]


def table_rows(store: Path, query: str) -> Rows:
    """The rows of a table; its first column is a moment."""
    with sqlite3.connect(f"file:{store}?mode=ro", uri=True) as connection:
        return [[micros(since), *rest] for since, *rest in connection.execute(query)]


def micros(moment: str) -> int:
    """Since 1970; a moment that does not say where is in UTC."""
    parsed = datetime.fromisoformat(moment)
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)
