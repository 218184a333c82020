"""kill -9 of a driver while queries and events come: every match is there, once."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import Topics
from tests.pipelines.drivers import driver, planned, run_driver, wait_for_batches
from tests.pipelines.running.test_launching import stored
from tests.pipelines.standing.crashing import NAME
from tests.pipelines.standing.test_matching import BEGIN, produce, search

KILLS = 4
ROUNDS = 6  # between kills
OFFERS = 10  # in a round
QUERIES = 5
DRIVER = "tests.pipelines.standing.crashing"


@dataclass
class Market:
    """Queries that are added, changed and removed, offers, and the matches by brute force."""

    topics: Topics
    offers: str
    searches: str
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    second: int = 0
    records: int = 0  # of the topic of queries
    sent: int = 0
    in_force: dict[str, tuple[int, int]] = field(default_factory=dict)  # limit of price, version
    expected: list[tuple[int, str, int]] = field(default_factory=list)

    def change_queries(self) -> None:
        self.second += 10
        name, limit = f"q{self.rng.randrange(QUERIES)}", self.rng.randrange(100)
        removes = name in self.in_force and self.rng.random() < 0.3
        where = None if removes else f"price < {limit}"
        produce(self.topics, self.searches, [search(name, where, self.second)])
        if removes:
            del self.in_force[name]
        else:
            self.in_force[name] = limit, self.records
        self.records += 1

    def send_offers(self) -> None:
        """They are younger than all queries."""
        rows: list[Any] = []
        for _ in range(OFFERS):
            price = self.rng.randrange(100)
            at = (BEGIN + timedelta(seconds=self.second + 1)).isoformat()
            row = {"offer": self.sent, "price": float(price), "at": at}
            rows.append((str(self.sent), row, None))
            self.expected += [
                (self.sent, name, version)
                for name, (limit, version) in self.in_force.items()
                if price < limit
            ]
            self.sent += 1
        produce(self.topics, self.offers, rows)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_driver_has_the_matches_of_a_run_without_kills(
    topics: Topics, tmp_path: Path
) -> None:
    market = Market(topics, topics.create(2), topics.create(cleanup_policy="compact"))
    place = [topics.bootstrap, market.offers, market.searches, str(tmp_path)]
    checkpoint = tmp_path / "checkpoints" / NAME
    for life in range(KILLS):
        for _ in range(ROUNDS):
            market.change_queries()
            market.send_offers()
        with driver(DRIVER, place, tmp_path) as process:
            wait_for_batches(process, tmp_path, checkpoint, 2 + life)
            time.sleep(market.rng.uniform(0.0, 0.5))  # so that it dies somewhere in a batch
    market.change_queries()  # a repeated batch must not have it
    run_driver(DRIVER, [*place, "once"], tmp_path)
    rows = stored(tmp_path, "SELECT offer, query, version FROM alerts")
    assert sorted(rows) == sorted(market.expected)
    assert planned(checkpoint) > KILLS
