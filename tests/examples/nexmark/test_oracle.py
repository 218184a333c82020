"""Every answer of DuckDB equals one that is computed in plain loops, on data rich in ties too."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from examples.nexmark.generator import SCHEMAS, TIME, Generator, Settings, Tables

from examples.nexmark import oracle
from tests.examples.nexmark import recomputation
from tests.examples.nexmark.recomputation import Events

# Two minutes around midnight, with auctions enough that q2 finds one.
SETTINGS = Settings(2_500, seed=3, events_per_second=20, starts_at_ms=1_767_225_560_000)
EXACT_TYPES = {pa.int64(), pa.string(), TIME, pa.decimal128(23, 3)}
PRICES = [9_999, 10_000, 999_999, 1_000_000, 1_101_321, 1_101_322, 55_066_079, 55_066_080]


def events_of(tables: Tables) -> Events:
    """Rows in plain Python, their times in milliseconds."""
    return Events(*([in_numbers(row) for row in rows_of(table)] for table in tables))


def rows_of(table: pa.Table) -> list[dict[str, Any]]:
    """With times as microseconds."""
    fields = [it.with_type(pa.int64()) if it.type == TIME else it for it in table.schema]
    return table.cast(pa.schema(fields)).to_pylist()


def in_numbers(row: dict[str, Any]) -> dict[str, Any]:
    times = {"dateTime", "expires", "arrival"} & set(row)
    return {**row, **{name: row[name] // 1000 for name in times}}


def coarse(tables: Tables) -> Tables:
    """The same events with few values, so that ties and bounds of windows are everywhere."""
    person, auction, bid = map(rows_of, tables)
    for row in (*person, *auction, *bid):
        for name in {"dateTime", "expires", "arrival"} & set(row):
            row[name] -= row[name] % 5_000_000
    for number, row in enumerate(bid):
        row["price"] = PRICES[row["price"] % len(PRICES)]
        row["bidder"] = 1_000 + row["bidder"] % 40
        row["extra"] = row["extra"][:1]
        row["channel"] = ["APPLE", "other", row["channel"]][number % 3]
        row["url"] = ["https://a/b?&channel_id=", "https://a/b/c/d/", row["url"]][number // 3 % 3]
    parts = zip((person, auction, bid), SCHEMAS, strict=True)
    return Tables(*(pa.Table.from_pylist(rows, schema=schema) for rows, schema in parts))


@pytest.fixture(scope="module")
def tables() -> Tables:
    return Generator(SETTINGS).tables()


@pytest.fixture(scope="module", params=["as generated", "coarse"])
def data(request: pytest.FixtureRequest, tables: Tables) -> Tables:
    return tables if request.param == "as generated" else coarse(tables)


def plain(answer: pa.Table) -> Counter[tuple[Any, ...]]:
    """Rows with times as milliseconds; a multiset, for an answer has no order."""
    values = [
        pc.divide(column.cast(pa.int64()), 1000) if column.type == TIME else column
        for column in answer.itercolumns()
    ]
    return Counter(zip(*(column.to_pylist() for column in values), strict=True))


@pytest.mark.parametrize("query", oracle.QUERIES)
def test_answer_equals_that_of_plain_loops(query: str, data: Tables) -> None:
    expected = getattr(recomputation, query)(events_of(data))
    found = oracle.answer(query, data)
    assert plain(found) == Counter(expected)
    assert expected
    assert {field.type for field in found.schema} <= EXACT_TYPES


@pytest.mark.parametrize("query", oracle.QUERIES)
def test_answer_does_not_depend_on_the_order_of_rows(query: str, tables: Tables) -> None:
    data = coarse(tables)
    turned = Tables(*(table.take(pa.array(range(table.num_rows)[::-1])) for table in data))
    assert oracle.answer(query, turned).equals(oracle.answer(query, data))


def test_time_of_day_is_right_at_every_hour(tables: Tables) -> None:
    bids = rows_of(tables.bid)
    for number, bid in enumerate(bids):
        bid["dateTime"] += number % 24 * 3_600_000_000
    data = tables._replace(bid=pa.Table.from_pylist(bids, schema=tables.bid.schema))
    answer = oracle.answer("q14", data)
    assert plain(answer) == Counter(recomputation.q14(events_of(data)))
    assert len(set(answer["bidTimeType"].to_pylist())) == 3


@pytest.mark.parametrize("query", oracle.KEY)
def test_key_names_at_most_one_row(query: str, data: Tables) -> None:
    keys = oracle.answer(query, data).select(oracle.KEY[query])
    assert keys.group_by(keys.column_names).aggregate([]).num_rows == keys.num_rows


def test_readme_has_a_line_for_every_query() -> None:
    readme = (Path(oracle.__file__).parent / "README.md").read_text(encoding="utf-8")
    lines = [line for line in readme.splitlines() if line.startswith("| [q")]
    assert [line.split("]")[0] for line in lines] == [f"| [{query}" for query in oracle.QUERIES]
