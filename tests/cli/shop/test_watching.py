"""What is seen of the shop: products by the tables, alerts and dead letters as they come."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

from confluent_kafka import Producer

from millstream import Broker
from millstream.cli.shop.watching import Desk, Look, Position, Product, Watcher, top_products
from tests.peers.patience import PATIENCE_SECONDS

PATIENCE_S = 60


def test_products_are_summed_over_all_windows_and_the_best_comes_first(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    assert top_products(store) == []
    connection = sqlite3.connect(store)
    connection.executescript(
        """
        create table sales (since text, product text, orders integer, revenue integer);
        insert into sales values ('1', 'mug', 2, 24), ('2', 'mug', 1, 12), ('1', 'desk', 1, 390);
        create table interest (since text, product text, views integer);
        insert into interest values ('1', 'mug', 9), ('2', 'mug', 1), ('1', 'rug', 7);
        """
    )
    connection.close()
    assert top_products(store) == [Product("desk", 1, 390, 0), Product("mug", 3, 36, 10)]


def test_look_has_passed_another_when_every_pipeline_has_moved() -> None:
    before = Look([Position("a", 5, 1), Position("b", 0, 0)])
    assert not before.has_passed(before)
    assert not Look([Position("a", 6, 0), Position("b", 0, 0)]).has_passed(before)
    assert Look([Position("a", 6, 0), Position("b", 1, 0)]).has_passed(before)
    assert before.lag == 1
    assert not Look().has_passed(Look())


def test_desk_reads_alerts_and_counts_a_letter_once() -> None:
    with Broker.start(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce(
            "alerts", json.dumps({"customer": "ada", "product": "rug", "amount": 1920})
        )
        fraud = {"customer": "eve", "id": 7, "tries": 3, "amount": 1950}
        producer.produce("frauds", json.dumps(fraud))
        assert producer.flush(PATIENCE_SECONDS) == 0
        desk = Desk(broker.bootstrap_servers)
        desk.start()
        headers = [("__dlq.errors.reason", "malformed"), ("__dlq.errors.message", "no JSON")]
        for key in (b"orders/0/1", b"orders/0/1", b"orders/0/2"):
            producer.produce("dlq.orders", b"?", key, headers=headers)
        assert producer.flush(PATIENCE_SECONDS) == 0
        deadline = time.monotonic() + PATIENCE_S
        while desk.letters < 2 or desk.alerts < 1 or desk.frauds < 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        desk.stop()
    assert desk.reasons == {"malformed": 2}
    assert list(desk.last_alerts) == ["ada: rug for 1,920"]
    assert list(desk.last_frauds) == ["eve: 3 small, then 1,950"]


def test_watcher_sees_no_transaction_where_nobody_writes(tmp_path: Path) -> None:
    with Broker.start() as broker:
        assert Watcher(broker.bootstrap_servers, tmp_path / "none.db").open_transactions() == 0
