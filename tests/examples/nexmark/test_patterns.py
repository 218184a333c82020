"""Nexmark's questions about sequences: the answers are those of Trino, of streams and batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from examples.nexmark.generator import Generator, Settings
from examples.nexmark.patterns import SEQUENCES

from millstream.pipelines.state.trial import Trial
from tests.peers.cache import PeerMissing
from tests.peers.trino import Trino, running_trino
from tests.pipelines.patterns.batches import SqlBatch

# Few events a second, so that time is over for some matches.
SETTINGS = Settings(events=4_000, seed=5, events_per_second=100)
DELAY_US = 1_000_000 * SETTINGS.delay_max_ms // 1000
LIMIT_US = {"falling": 6_000_000, "low_average": 6_000_000, "low_average_from": 6_000_000}
# The questions in Trino's words. It has no WITHIN: `near` is a condition of every variable.
QUERIES = {
    "falling": """
        MEASURES S.at AS began, LAST(D.at) AS bottom, U.at AS ended
        AFTER MATCH SKIP TO LAST U PATTERN (S D+ U)
        DEFINE S AS {near}, U AS {near} AND price > LAST(D.price, 1),
               D AS {near} AND price < coalesce(LAST(D.price, 1), S.price)""",
    "low_average": """
        MEASURES FIRST(A.at) AS began, LAST(A.at) AS ended, avg(A.price) AS avg_price
        AFTER MATCH SKIP PAST LAST ROW PATTERN (A+ B)
        DEFINE A AS {near} AND avg(A.price) < 10000, B AS {near}""",
    "low_average_from": """
        MEASURES FIRST(A.at) AS began, LAST(A.at) AS ended, avg(A.price) AS avg_price
        AFTER MATCH SKIP TO NEXT ROW PATTERN (A+ B)
        DEFINE A AS {near} AND avg(A.price) < 10000, B AS {near}""",
    "drop": """
        MEASURES C.at AS moment, A.price - C.price AS difference
        AFTER MATCH SKIP PAST LAST ROW PATTERN (A B* C)
        DEFINE A AS {near}, B AS {near} AND price > A.price - 50,
               C AS {near} AND price < A.price - 50""",
}


def bids() -> list[dict[str, Any]]:
    """The bids of few bidders, in the order of arrival, with times in microseconds."""
    found = []
    for number, it in enumerate(Generator(SETTINGS).tables().bid.to_pylist()):
        moment = round(it["dateTime"].timestamp() * 1_000_000)
        key = {"auction": it["auction"] % 10, "bidder": it["bidder"] % 10}
        found.append(key | {"price": it["price"] % 20_000, "dateTime": moment, "number": number})
    return found


def batch_of(name: str, rows: list[dict[str, Any]]) -> SqlBatch:
    pattern = SEQUENCES[name]
    within_us = LIMIT_US.get(name, pattern.within_us)
    return SqlBatch(replace(pattern, order_by=("number",), within_us=within_us), rows)


def tuples(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(it.values()) for it in found)


@pytest.mark.parametrize("name", SEQUENCES)
def test_stream_has_the_answer_of_a_batch(name: str) -> None:
    batch = batch_of(name, bids())
    trial, rows = Trial(batch.operator), batch.rows()
    times = rows.column(rows.schema.get_field_index("dateTime")).to_numpy()
    found = []
    for at in range(0, rows.num_rows, 700):
        watermark_us = int(times[:at].max()) - DELAY_US - 1 if at else None
        found.append(trial.feed({"events": rows.slice(at, 700)}, watermark_us))
    found.append(trial.finish())
    shown = batch.shown(found)
    assert len(shown) > 20
    assert tuples(shown) == tuples(batch.results())


@pytest.fixture(scope="module")
def trino() -> Iterator[Trino]:
    try:
        with running_trino() as it:
            yield it
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(1200)  # for the first one: Trino has to be downloaded
@pytest.mark.parametrize("name", SEQUENCES)
def test_answer_is_that_of_trino(trino: Trino, name: str) -> None:
    rows = bids()
    limit_us = LIMIT_US.get(name, SEQUENCES[name].within_us)
    values = ", ".join(str(tuple(it.values())) for it in rows)
    columns = "auction, bidder, price, at, number"
    clause = QUERIES[name].format(near=f"at - FIRST(at) < {limit_us}")
    expected = trino.query(
        f"SELECT * FROM (VALUES {values}) AS bid({columns}) MATCH_RECOGNIZE "
        f"(PARTITION BY auction, bidder ORDER BY at, number {clause})"
    )
    assert tuples(batch_of(name, rows).results()) == sorted(expected)
