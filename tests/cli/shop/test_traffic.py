"""Customers of the shop: made up from a seed, and written down when a real broker has them."""

from __future__ import annotations

import json
from collections import Counter

from millstream import Broker
from millstream.cli.shop.traffic import Customers, Event, Shoppers

NOW = 1_790_000_000.0
VISITS = 2000


def visits(seed: int) -> list[Event]:
    shoppers = Shoppers(seed)
    return [event for _ in range(VISITS) for event in shoppers.next_visit(NOW)]


def test_same_seed_makes_the_same_traffic() -> None:
    assert visits(1) == visits(1) != visits(2)


def test_traffic_has_all_that_can_go_wrong() -> None:
    events = visits(1)
    kinds = Counter(it.kind for it in events)
    assert kinds["order"] == VISITS < kinds["view"]
    assert kinds["again"] > 20
    assert kinds["poison"] > 2
    assert sum(it.is_late for it in events if it.kind == "order") > 50


def test_duplicate_is_the_same_order_to_the_byte() -> None:
    events = visits(1)
    originals = {it.order_id: it for it in events if it.kind == "order"}
    duplicates = [it for it in events if it.kind == "again"]
    assert all(it == originals[it.order_id]._replace(kind="again") for it in duplicates)


def test_orders_have_numbers_of_their_own_and_are_placed_in_time() -> None:
    values = [json.loads(it.value) for it in visits(1) if it.kind == "order"]
    assert [it["id"] for it in values] == list(range(VISITS))
    assert all(it["at"] <= "2026-09-21T14:13:20" + "+00:00" for it in values)
    assert all(it["pieces"] >= 1 and it["product"] and it["customer"] for it in values)


def test_ledger_has_what_was_acknowledged() -> None:
    with Broker.start(config={"num.partitions": 2}) as broker:
        customers = Customers(broker.bootstrap_servers, rate=1, seed=1)
        for _ in range(VISITS):
            customers.send_visit()
        customers.start()
        customers.stop()
    ledger = customers.ledger
    sent = Counter(it.kind for it in visits(1))
    assert ledger.orders == set(range(VISITS))
    assert (ledger.views, ledger.again) == (sent["view"], sent["again"])
    assert len(ledger.poison) == sent["poison"]
    assert ledger.refused == 0
