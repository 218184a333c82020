"""The audit notices whatever is lost, doubled or changed, wherever it is."""

from __future__ import annotations

import copy
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from millstream import Broker
from millstream.cli.shop.audit import Finding, Made, compare, find_frauds, judge, micros, read_made
from millstream.cli.shop.traffic import Ledger
from millstream.pipelines.stores import TableSpec, open_store
from tests.peers.patience import PATIENCE_SECONDS

LEDGER = Ledger(orders={1, 2, 3}, poison={(0, 7), (1, 9)}, views=5)
ROWS: dict[str, list[list[Any]]] = {
    "enriched": [
        [1, "ada", "mug", "dining", 24, 1_000_000],
        [2, "bob", "desk", "office", 1950, 2_000_000],
        [3, "eve", "mug", "dining", 12, 3_000_000],
    ],
    "alerts": [["bob", 2, "desk", 1950]],
    "frauds": [],
    "customers": [["ada", 24], ["bob", 1950], ["eve", 12]],
    "sales": [[0, "mug", 2, 36], [0, "desk", 1, 1950]],
    "interest": [[0, "mug", 4], [0, "desk", 1]],
}
LETTERS = {(0, 7), (1, 9)}


def test_what_is_missing_is_lost_and_what_is_beyond_is_doubled() -> None:
    assert compare("x", {"a": 2, "b": 1}, {"a": 2, "b": 1}) == Finding("x", 3, 3, 0, 0)
    assert compare("x", {"a": 2, "b": 1}, {"a": 1, "c": 3}) == Finding("x", 3, 4, 2, 3)


def test_books_that_agree_are_found_in_order() -> None:
    verdict = judge(LEDGER, ROWS, Made(ROWS, LETTERS))
    assert verdict.holds
    assert (verdict.sent, verdict.counted, verdict.lost, verdict.doubled) == (3, 3, 0, 0)


Tampering = Callable[[dict[str, list[list[Any]]]], object]


@pytest.mark.parametrize(
    ("tamper", "lost", "doubled"),
    [
        (lambda rows: rows["enriched"].pop(), 1, 0),
        (lambda rows: rows["enriched"].append(rows["enriched"][0]), 0, 1),
        (lambda rows: rows["enriched"][0].__setitem__(4, 25), 1, 1),
        (lambda rows: rows["alerts"].clear(), 1, 0),
        (lambda rows: rows["alerts"].append(rows["alerts"][0]), 0, 1),
        (lambda rows: rows["sales"][0].__setitem__(2, 1), 1, 0),
        (lambda rows: rows["sales"][0].__setitem__(2, 4), 0, 2),
        (lambda rows: rows["sales"][0].__setitem__(3, 30), 6, 0),
        (lambda rows: rows["sales"][0].__setitem__(0, 10), 2 + 36, 2 + 36),
        (lambda rows: rows["sales"].pop(), 1 + 1950, 0),
        (lambda rows: rows["interest"][0].__setitem__(2, 6), 0, 2 + 2),
        (lambda rows: rows["frauds"].append(["ada", 1, 3, 24]), 0, 1),
        (lambda rows: rows["customers"].pop(), 12, 0),
        (lambda rows: rows["customers"].__setitem__(1, ["bob", 24]), 1950 - 24, 0),
    ],
)
def test_tampering_with_what_was_made_is_noticed(
    tamper: Tampering, lost: int, doubled: int
) -> None:
    rows = copy.deepcopy(ROWS)
    tamper(rows)
    verdict = judge(LEDGER, ROWS, Made(rows, LETTERS))
    assert not verdict.holds
    assert (verdict.lost, verdict.doubled) == (lost, doubled)


def test_order_that_was_acknowledged_and_is_nowhere_is_noticed() -> None:
    ledger = Ledger(orders={1, 2, 3, 4}, poison=LETTERS, views=5)
    verdict = judge(ledger, ROWS, Made(ROWS, LETTERS))
    assert (verdict.sent, verdict.counted, verdict.lost, verdict.holds) == (4, 3, 1, False)


@pytest.mark.parametrize(
    ("letters", "lost", "doubled"), [({(0, 7)}, 1, 0), ({*LETTERS, (0, 8)}, 0, 1)]
)
def test_dead_letters_that_do_not_fit_are_noticed(
    letters: set[tuple[int, int]], lost: int, doubled: int
) -> None:
    verdict = judge(LEDGER, ROWS, Made(ROWS, letters))
    assert (verdict.lost, verdict.doubled, verdict.holds) == (lost, doubled, False)


def orders_of(customer: str, *amounts_and_seconds: tuple[int, int]) -> list[list[Any]]:
    return [
        [number, customer, "mug", "dining", amount, second * 1_000_000]
        for number, (amount, second) in enumerate(amounts_and_seconds)
    ]


@pytest.mark.parametrize(
    ("orders", "found"),
    [
        ([(5, 1), (5, 2), (5, 3), (2000, 4)], [("ada", 3, 3, 2000)]),
        ([(5, 1), (5, 2), (2000, 4)], []),
        ([(5, 1), (5, 2), (5, 3), (500, 4), (2000, 5)], []),
        ([(5, 1), (5, 2), (5, 3), (2000, 61)], []),
        ([(5, 1), (5, 2), (5, 3), (5, 4), (2000, 61)], [("ada", 4, 3, 2000)]),
        ([(5, 30), (5, 2), (5, 31), (2000, 70)], [("ada", 3, 3, 2000)]),
        ([(5, 1), (5, 2), (5, 3), (2000, 4), (2000, 5)], [("ada", 3, 3, 2000)]),
    ],
)
def test_frauds_are_small_orders_and_a_large_one_within_a_minute(
    orders: list[tuple[int, int]], found: list[tuple[Any, ...]]
) -> None:
    others = orders_of("bob", (2000, 3), (5, 4))
    mine = orders_of("ada", *orders)
    mixed = [mine[0], others[0], *mine[1:], others[1]]
    assert list(find_frauds(mixed)) == found


def test_topics_tables_and_views_are_read_as_they_are(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    connection = sqlite3.connect(store)
    connection.executescript(
        """
        create table sales (since text, product text, orders integer, revenue integer);
        insert into sales values ('1970-01-01 00:00:10.000000', 'mug', 2, 36);
        create table interest (since text, product text, views integer);
        """
    )
    connection.close()
    write_view(store)
    order = {"id": 1, "customer": "ada", "product": "mug", "department": "dining", "amount": 24}
    place = [("__dlq.errors.topic", "orders"), ("__dlq.errors.partition", "1")]
    with Broker.start() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("enriched", json.dumps(order | {"at": "1970-01-01T00:00:01Z"}))
        producer.produce("alerts", json.dumps(order))
        producer.produce("frauds", json.dumps(order | {"tries": 3}))
        for _ in range(2):  # a batch that runs again writes its letters again
            producer.produce("dlq.orders", b"?", headers=[*place, ("__dlq.errors.offset", "9")])
        assert producer.flush(PATIENCE_SECONDS) == 0
        made = read_made(broker.bootstrap_servers, store)
    assert made.rows == {
        "enriched": [[1, "ada", "mug", "dining", 24, 1_000_000]],
        "alerts": [["ada", 1, "mug", 24]],
        "frauds": [["ada", 1, 3, 24]],
        "customers": [["ada", 36], ["bob", 24]],
        "sales": [[10_000_000, "mug", 2, 36]],
        "interest": [],
    }
    assert made.dead_letters == {(1, 9)}


def write_view(path: Path) -> None:
    """As the pipeline `customers` does."""
    rows = pa.table({"customer": ["ada", "bob"], "spent": [36, 24], "_weight": [1, 1]})
    view = TableSpec("customers", ("customer",), delete="_weight")
    with open_store(f"sqlite:///{path}") as store:
        store.prepare(rows.schema, view)
        store.list_views("customers", [(view.name, view, 10)])
        store.write_arrow([(rows, view)], 0, "customers", json.dumps({"enriched": {"0": 3}}))


def test_moments_are_in_utc_unless_they_say_otherwise() -> None:
    assert micros("1970-01-01 00:00:01.500000") == 1_500_000
    assert micros("1970-01-01T01:00:00+01:00") == 0
