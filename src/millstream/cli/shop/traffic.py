"""A shop's customers: page views and orders, some late, some sent twice, some broken.

`Shoppers` makes it all up, from a seed; `Customers` sends it at a steady rate, and writes down in a
`Ledger` what the broker acknowledged: in the end each order is asked for.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

from confluent_kafka import Producer

from millstream.cli.shop.pipelines import PRODUCTS, orders, page_views

SEND_EVERY_S = 0.02
FLUSH_S = 60.0
CUSTOMERS = 500
PIECES_MAX = 6
VIEWS_MAX = 4  # before an order
LATE_SHARE, TWICE_SHARE, POISON_SHARE = 0.05, 0.03, 0.005
LATE_SECONDS_MAX = 25.0
REMEMBERED = 4000  # of the last orders some are sent again, some of them across a crash
POPULARITY = [5, 3, 8, 2, 4, 6, 9, 3]  # of PRODUCTS, in their order

Kind = Literal["view", "order", "again", "poison"]


class Event(NamedTuple):
    """A record to send."""

    kind: Kind
    topic: str
    key: str
    value: bytes
    order_id: int = -1
    is_late: bool = False


@dataclass
class Shoppers:
    """What customers do, one order after the other, the same for the same seed."""

    seed: int
    made: int = 0
    _recent: deque[Event] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def next_visit(self, now: float) -> Iterator[Event]:
        """Someone looks around and orders; and perhaps something goes wrong."""
        for _ in range(self._random.randint(0, VIEWS_MAX - 1)):
            yield view(self._choose_product(), now)
        product = self._choose_product()
        yield view(product, now)
        order = self._order(product, now)
        self._recent.append(order)
        yield order
        chance = self._random.random()
        if chance < TWICE_SHARE:
            yield self._random.choice(self._recent)._replace(kind="again")
        elif chance < TWICE_SHARE + POISON_SHARE:
            yield self._poison(order)

    def _choose_product(self) -> str:
        return self._random.choices(PRODUCTS, POPULARITY)[0][0]

    def _order(self, product: str, now: float) -> Event:
        is_late = self._random.random() < LATE_SHARE
        delay_s = self._random.uniform(1, LATE_SECONDS_MAX) if is_late else 0.0
        order = {
            "id": self.made,
            "customer": f"customer-{self._random.randrange(CUSTOMERS):03}",
            "product": product,
            "pieces": self._random.randint(1, PIECES_MAX),
            "at": moment(now - delay_s),
        }
        self.made += 1
        customer = str(order["customer"])
        return Event("order", orders.name, customer, encode(order), self.made - 1, is_late)

    def _poison(self, order: Event) -> Event:
        """The order again, as a broken client sends it."""
        fields = json.loads(order.value)
        broken = [
            order.value[: len(order.value) // 2],
            encode(fields | {"pieces": "a few"}),
            encode(fields | {"at": "yesterday"}),
            encode({name: value for name, value in fields.items() if name != "product"}),
            b"\x00\xff\x00",
        ]
        return Event("poison", orders.name, order.key, self._random.choice(broken))


def view(product: str, now: float) -> Event:
    return Event("view", page_views.name, product, encode({"product": product, "at": moment(now)}))


def encode(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


@dataclass
class Ledger:
    """What the broker acknowledged."""

    orders: set[int] = field(default_factory=set)  # by id
    poison: set[tuple[int, int]] = field(default_factory=set)  # partition and offset
    views: int = 0
    again: int = 0
    late: int = 0
    refused: int = 0

    def take(self, event: Event, partition: int, offset: int) -> None:
        match event.kind:
            case "order":
                self.orders.add(event.order_id)
                self.late += event.is_late
            case "again":
                self.orders.add(event.order_id)
                self.again += 1
            case "view":
                self.views += 1
            case "poison":
                self.poison.add((partition, offset))


class Customers(threading.Thread):
    """Sends orders, and the views before them, at a steady rate until told to stop."""

    def __init__(self, address: str, rate: int, seed: int) -> None:
        super().__init__(name="customers", daemon=True)
        self.ledger = Ledger()
        self.shoppers = Shoppers(seed)
        self.rate = rate
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        began = time.monotonic()
        while not self._stopping.wait(SEND_EVERY_S):
            due = int((time.monotonic() - began) * self.rate)
            while self.shoppers.made < due and not self._stopping.is_set():
                self.send_visit()
            self._producer.poll(0)
        self._producer.flush(FLUSH_S)

    def stop(self) -> None:
        """Returns when every order is acknowledged, or refused."""
        self._stopping.set()
        if self.is_alive():
            self.join()

    def send_visit(self) -> None:
        for event in self.shoppers.next_visit(time.time()):
            self._send(event)

    def _send(self, event: Event) -> None:
        def on_delivery(error: Any, message: Any) -> None:
            if error is not None:
                self.ledger.refused += 1
            else:
                self.ledger.take(event, message.partition(), message.offset())

        while True:
            try:
                self._producer.produce(event.topic, event.value, event.key, on_delivery=on_delivery)
                return
            except BufferError:  # more than the broker takes: wait for it
                self._producer.poll(SEND_EVERY_S)
