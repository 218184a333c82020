"""Lookups in a database and in a service, of their own processes' making and real."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlparse
from urllib.request import urlopen

import pyarrow as pa
import pytest

from millstream.errors import ConfigError
from millstream.pipelines.joins import lookup, split_failed
from millstream.pipelines.joins.external import LookupClient, LookupFailed, LookupSettings
from millstream.pipelines.joins.lookup import ERROR, FAILED, Lookup

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLICKS = pa.schema([("click", pa.int64()), ("user", pa.int64())])
ANSWERS = pa.schema([("name", pa.string()), ("age", pa.int32())])


@dataclass
class People:
    """A service: `/people?id=1&id=2` answers `{"1": ["ann", 31]}`, or fails with 503."""

    requests: list[list[int]] = field(default_factory=list)
    is_down: bool = False
    url: str = ""


@pytest.fixture
def people() -> Iterator[People]:
    service = People()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = [int(it) for it in parse_qs(urlparse(self.path).query)["id"]]
            service.requests.append(wanted)
            known = {it: [f"n{it}", it + 30] for it in wanted if it != 13}
            self.send_response(503 if service.is_down else 200)
            self.end_headers()
            self.wfile.write(b"" if service.is_down else json.dumps(known).encode())

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.url = f"http://127.0.0.1:{server.server_port}/people"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield service
    server.shutdown()
    thread.join()
    server.server_close()


def ask_service(url: str, ids: list[int]) -> dict[int, list[Any]]:
    query = "&".join(f"id={it}" for it in ids)
    with urlopen(f"{url}?{query}", timeout=10) as answer:
        return {int(key): value for key, value in json.load(answer).items()}


def ask_database(path: str, keys: list[tuple[str, int]]) -> dict[tuple[str, int], dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(
            "select shop, item, price from prices where (shop, item) in (values "
            + ", ".join(["(?, ?)"] * len(keys))
            + ")",
            [value for key in keys for value in key],
        )
        return {(shop, item): {"price": price} for shop, item, price in found}


def looked_up(fetch: Any, **changes: Any) -> Lookup:
    settings: dict[str, Any] = {"how": "left", "on_failure": "error"}
    settings |= {"settings": LookupSettings(retries=0)} | changes
    return Lookup("test", ("user",), ANSWERS, fetch=fetch, **settings)


def run(wanted: Lookup, *users: int | None, client: LookupClient | None = None) -> list[Any]:
    columns = [pa.array(range(len(users)), pa.int64()), pa.array(users, pa.int64())]
    rows = pa.RecordBatch.from_arrays(columns, schema=CLICKS)
    client = client or LookupClient(wanted.fetch, wanted.settings, pause=lambda _: None)
    return [tuple(it.values())[1:] for it in wanted.run(client, rows).to_pylist()]


def test_rows_get_the_answers_of_one_call(people: People) -> None:
    wanted = looked_up(partial(ask_service, people.url))
    found = run(wanted, 1, 13, None, 2, 1)
    assert found == [
        (1, "n1", 31, None),
        (13, None, None, None),
        (None, None, None, None),
        (2, "n2", 32, None),
        (1, "n1", 31, None),
    ]
    assert sorted(people.requests[0]) == [1, 2, 13]
    assert len(people.requests) == 1
    assert run(looked_up(wanted.fetch, how="inner"), 13, 2, None) == [(2, "n2", 32, None)]
    assert run(wanted, None) == [(None, None, None, None)], "nobody is asked for nothing"
    assert len(people.requests) == 2


def test_service_that_is_down_leaves_rows_without_an_answer_until_it_is_back(
    people: People,
) -> None:
    fetch = partial(ask_service, people.url)
    wanted = looked_up(fetch, on_failure="divert", how="inner", settings=LookupSettings(retries=1))
    client = LookupClient(fetch, wanted.settings, pause=lambda _: None)
    assert run(wanted, 1, client=client) == [(1, "n1", 31, None)]
    people.is_down = True
    ((_, name, age, error),) = run(wanted, 2, client=client)
    assert (name, age) == (None, None)
    assert "HTTP Error 503" in error
    assert len(people.requests) == 3
    assert run(wanted, 1, client=client) == [(1, "n1", 31, None)], "what is known is known"
    people.is_down = False
    assert run(wanted, 2, client=client) == [(2, "n2", 32, None)]
    people.is_down = True
    with pytest.raises(LookupFailed, match=r"lookup by user failed: .*503.*on_failure=\"null\""):
        run(looked_up(fetch), 3)


@pytest.mark.parametrize(
    ("answer", "message"),
    [("ann", "neither a dict nor a tuple of name, age"), ({"age": "old"}, "does not fit")],
)
def test_answer_of_another_shape_is_refused(answer: Any, message: str) -> None:
    with pytest.raises(LookupFailed, match=message):
        run(looked_up(lambda keys: dict.fromkeys(keys, answer)), 1)


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = str(tmp_path / "prices.db")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("create table prices (shop text, item int, price real)")
        rows = [("a", number, number / 4) for number in range(100)]
        connection.executemany("insert into prices values (?, ?, ?)", rows)
    return path


def test_frame_gets_columns_from_a_database_as_a_stream_and_as_a_batch(
    spark: SparkSession, prices: str, tmp_path: Path
) -> None:
    sales = spark.sql("select 'a' as shop, int(id % 120) as item, id from range(500)")
    sales.write.parquet(str(tmp_path / "sales"))
    arguments = (["shop", "item"], partial(ask_database, prices), "price double")
    expected = {(it, it % 120 / 4 if it % 120 < 100 else None) for it in range(500)}
    found = sales.transform(lookup, *arguments, batch_size=30).collect()
    assert {(it.id, it.price) for it in found} == expected
    stream = spark.readStream.schema(sales.schema).parquet(str(tmp_path / "sales"))
    result = stream.transform(lookup, *arguments, how="inner")
    query = result.writeStream.format("memory").queryName("priced").trigger(availableNow=True)
    query.start().awaitTermination()
    rows = spark.table("priced").collect()
    assert {(it.id, it.price) for it in rows} == {it for it in expected if it[1] is not None}
    assert result.columns == ["shop", "item", "id", "price"]


def test_rows_without_an_answer_are_counted_or_parted_or_end_the_query(
    spark: SparkSession, tmp_path: Path
) -> None:
    def refuse(keys: list[int]) -> dict[int, Any]:
        raise ConnectionError("refused")

    spark.range(3).write.parquet(str(tmp_path / "ids"))
    stream = spark.readStream.schema("id long").parquet(str(tmp_path / "ids"))
    arguments = ("id", refuse, "name string")
    result = stream.transform(lookup, *arguments, on_failure="null", retries=0)
    query = result.writeStream.format("noop").trigger(availableNow=True).start()
    query.awaitTermination()
    assert query.recentProgress[0].observedMetrics[FAILED].rows == 3
    diverted = spark.range(3).transform(lookup, *arguments, on_failure="divert", retries=0)
    assert diverted.columns == ["id", "name", ERROR]
    parted = diverted.transform(split_failed, "named", "letters").collect()
    assert all(it.named is None for it in parted)
    assert {(it.letters.id, it.letters[ERROR]) for it in parted} == {
        (number, "ConnectionError: refused") for number in range(3)
    }
    with pytest.raises(Exception, match="lookup by id failed: ConnectionError: refused"):
        spark.range(3).transform(lookup, *arguments, retries=0).collect()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"on": "nobody"}, "there is no column 'nobody'"),
        ({"on": []}, "needs a column to look up"),
        ({"on": "list"}, "cannot be a key"),
        ({"schema": "id long"}, "two columns id: rename"),
        ({"how": "right"}, "choose one of inner, left"),
        ({"on_failure": "ignore"}, "choose one of error, null, divert"),
        ({"batch_size": 0}, "batch_size=0: it must be at least 1"),
        ({"timeout": "soon"}, "timeout"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    spark: SparkSession, changes: dict[str, Any], message: str
) -> None:
    frame = spark.sql("select id, array(id) as list from range(1)")
    usual: dict[str, Any] = {"on": "id", "fetch": dict.fromkeys, "schema": "name string"}
    with pytest.raises(ConfigError, match=message):
        lookup(frame, **(usual | changes))
