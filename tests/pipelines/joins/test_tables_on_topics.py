"""A stream and its table as topics of a broker: what is loaded first, deleted, restarted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import Pipeline, pipeline, table, topic
from millstream.pipelines.joins import enrich
from millstream.pipelines.running.status import failed_records
from millstream.pipelines.state.spark import ROCKSDB, STORE_PROVIDER
from tests.pipelines.conftest import Topics, run_to_end
from tests.pipelines.running.test_launching import stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

USERS = 3_000
PER_BATCH = 1_000


def named_clicks(clicks: DataFrame, users: DataFrame) -> DataFrame:
    return clicks.transform(enrich, users, buckets=4)


def declare(clicks: str, users: str, **more: str) -> Pipeline:
    reads = {
        "clicks": topic(clicks, schema="click long, user string"),
        "users": topic(
            users,
            schema="name string",
            table_key="user",
            options={"maxOffsetsPerTrigger": PER_BATCH, **more},
        ),
    }
    return pipeline(reads=reads, writes=table("named", key="click"), name=f"named-{clicks}")(
        named_clicks
    )


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[SparkSession]:
    before = spark.conf.get(STORE_PROVIDER)
    spark.conf.set(STORE_PROVIDER, ROCKSDB)
    yield spark
    spark.conf.set(STORE_PROVIDER, str(before))


def produce(topics: Topics, name: str, records: Mapping[str, dict[str, Any] | None]) -> None:
    """By key; None is a tombstone."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": topics.bootstrap, "acks": "all"})
    for key, value in records.items():
        producer.produce(name, None if value is None else json.dumps(value).encode(), key=key)
    assert producer.flush(60) == 0


def settings_in(tmp_path: Path, topics: Topics) -> dict[str, Any]:
    return {
        "broker": topics.bootstrap,
        "store": f"sqlite:///{tmp_path}/store.db",
        "checkpoint": str(tmp_path / "checkpoints"),
    }


def rows_by_batch(query: Any) -> list[dict[str, int]]:
    """Of each batch, the rows read of each topic."""
    found = []
    for progress in query.recentProgress:
        sources = json.loads(progress.json)["sources"]
        found.append({next(iter(it["endOffset"])): it["numInputRows"] for it in sources})
    return found


def test_table_is_there_before_the_first_row_of_the_stream_at_every_start(
    rocksdb: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    clicks, users = topics.create(), topics.create(partitions=2, cleanup_policy="compact")
    where = settings_in(tmp_path, topics)
    produce(topics, clicks, {str(n): {"click": n, "user": f"u{n}"} for n in range(0, USERS, 50)})
    produce(topics, users, {f"u{n}": {"name": f"n{n}"} for n in range(USERS)})
    declared = declare(clicks, users)
    query = run_to_end(lambda: declared.start(rocksdb, once=True, **where))
    found = stored(tmp_path, "select click, name from named order by click")
    assert found == [(n, f"n{n}") for n in range(0, USERS, 50)]
    read = [it for it in rows_by_batch(query) if any(it.values())]
    assert [it[clicks] for it in read] == [0] * (len(read) - 1) + [USERS // 50]
    assert all(it[users] <= PER_BATCH + 2 for it in read), "page by page"

    changes: dict[str, dict[str, Any] | None] = {"u0": {"name": "renamed"}, "u50": None}
    produce(topics, clicks, {str(n): {"click": USERS + n, "user": f"u{n}"} for n in (0, 50, 100)})
    produce(topics, users, changes | {f"u{n}": {"name": "x"} for n in range(1, USERS, 2)})
    query = run_to_end(lambda: declared.start(rocksdb, once=True, **where))
    found = stored(tmp_path, f"select click, name from named where click >= {USERS} order by click")
    assert found == [(USERS, "renamed"), (USERS + 50, None), (USERS + 100, "n100")]
    read = [it for it in rows_by_batch(query) if any(it.values())]
    assert [it[clicks] for it in read] == [0] * (len(read) - 1) + [3]
    query = run_to_end(lambda: declared.start(rocksdb, once=True, **where))
    assert not any(any(it.values()) for it in rows_by_batch(query))


def test_record_with_a_bad_key_is_counted_among_those_that_do_not_decode(
    rocksdb: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    clicks, users = topics.create(), topics.create()
    produce(topics, clicks, {"1": {"click": 1, "user": 17}})
    produce(topics, users, {"seventeen": {"name": "lost"}, "17": {"name": "ann"}, "x": None})
    reads = {
        "clicks": topic(clicks, schema="click long, user long"),
        "users": topic(users, schema="user long, name string", table_key="user"),
    }
    writes = table("named", key="click")
    declared = pipeline(reads=reads, writes=writes, name=f"named-{clicks}")(named_clicks)
    where = settings_in(tmp_path, topics)
    query = run_to_end(lambda: declared.start(rocksdb, once=True, **where))
    assert stored(tmp_path, "select click, name from named") == [(1, "ann")]
    assert sum(failed_records(json.loads(it.json)) for it in query.recentProgress) == 2


def test_table_follows_its_keys_to_new_partitions_and_into_a_recreated_topic(
    rocksdb: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """The same as a batch over history, too, as long as history is there."""
    clicks, users = topics.create(), topics.create()
    where = settings_in(tmp_path, topics)
    declared = declare(clicks, users, failOnDataLoss="false")
    people = [f"u{n}" for n in range(12)]
    click = iter(range(1_000))

    def names_now() -> list[str | None]:
        """What one click of each user gets."""
        numbers = [next(click) for _ in people]
        produce(
            topics,
            clicks,
            {str(n): {"click": n, "user": it} for n, it in zip(numbers, people, strict=True)},
        )
        run_to_end(lambda: declared.start(rocksdb, once=True, **where))
        found = dict(stored(tmp_path, "select click, name from named"))
        return [found[number] for number in numbers]

    produce(topics, users, {f"x{n}": {"name": "x"} for n in range(50)})
    produce(topics, users, {it: {"name": f"{it} first"} for it in people})
    assert names_now() == [f"{it} first" for it in people]

    topics.grow(users, 4)
    produce(topics, users, {it: {"name": f"{it} second"} for it in people[:6]})
    produce(topics, users, dict.fromkeys(people[6:9]))
    expected = [f"{it} second" for it in people[:6]] + [None] * 3
    expected += [f"{it} first" for it in people[9:]]
    assert names_now() == expected
    history = declared.batch(rocksdb, broker=topics.bootstrap).collect()
    current = {row["user"]: row["name"] for row in history}
    assert [current[it] for it in people] == expected

    topics.delete(users)
    topics.create(name=users)
    produce(topics, users, {people[0]: {"name": "recreated"}, people[1]: None})
    assert names_now() == ["recreated", None, *expected[2:]]


def test_pipeline_of_nothing_but_tables_is_refused(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    users = topics.create()
    reads = topic(users, schema="name string", load_first=True)
    declared = pipeline(reads=reads, writes=table("names"), name="only-tables")(lambda users: users)
    with pytest.raises(ConfigError, match="all of its topics are to be loaded first"):
        declared.start(
            spark,
            broker=topics.bootstrap,
            store=f"sqlite:///{tmp_path}/store.db",
            checkpoint=str(tmp_path),
        )


def test_table_that_is_loaded_first_begins_at_its_beginning() -> None:
    with pytest.raises(ConfigError, match="a table is read from its beginning"):
        topic("users", load_first=True, start_at="latest")
    with pytest.raises(ConfigError, match="a table is read from its beginning"):
        topic("users", schema="name string", table_key="user", start_at="latest")
    with pytest.raises(ConfigError, match="table_key needs a schema"):
        topic("users", table_key="user")
