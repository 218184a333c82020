"""SQL over topics: a search, a join of two topics, and a watch that continues where it stopped."""

from __future__ import annotations

import json

from confluent_kafka import Producer

from millstream import Broker
from millstream.query import query, watch

ORDERS = [("alice", 30.0), ("bob", 12.5), ("alice", 7.0), ("carol", 99.0)]
CITIES = {"alice": "Berlin", "bob": "Paris", "carol": "Berlin"}


def main() -> None:
    with Broker.start() as broker:
        address = broker.bootstrap_servers
        producer = Producer({"bootstrap.servers": address})
        for who, amount in ORDERS:
            producer.produce("orders", json.dumps({"who": who, "amount": amount}), key=who)
        for who, city in CITIES.items():
            producer.produce("people", json.dumps({"name": who, "city": city}), key=who)
        producer.flush()

        found = query("select _offset, amount from orders where _value like '%alice%'", address)
        print(found.to_pylist())
        assert found["amount"].to_pylist() == [30.0, 7.0]

        totals = query(
            "select city, sum(amount) as total from orders join people on who = name "
            "group by city order by city",
            address,
        )
        print(totals.to_pylist())
        assert totals.to_pydict() == {"city": ["Berlin", "Paris"], "total": [136.0, 12.5]}

        with watch("orders", address, key="alice", from_beginning=True) as changes:
            print("first:", next(changes).value)
            position = changes.position
        with watch("orders", address, key="alice", position=position) as changes:
            second = next(changes)
            print("second, after a restart:", second.value)
            assert second.offset == 2


if __name__ == "__main__":
    main()
