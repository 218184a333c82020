"""Queries over a real broker's topics, compared with the same query over a list of its records."""

from __future__ import annotations

import io
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from millstream.broker.embedded import Broker
from millstream.cli.main import main
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ConfigError, ErrorCode
from millstream.query import Query, QueryFailed, query
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.schema_registry import running_registry
from tests.peers.transactional import TransactionalProducer
from tests.query.scene import KEEP, START_MS, Sent, make_topic, produce

PARTITIONS = 3
PATIENCE = 60.0
WORDS = ["alice", "bob", "carol", "dave"]


def make_records(count: int) -> list[Sent]:
    chance = random.Random(5)
    records = []
    for number in range(count):
        value = json.dumps(
            {"id": number, "who": chance.choice(WORDS), "amount": chance.randrange(1000) / 10}
        ).encode()
        records.append(
            Sent(
                None if chance.random() < 0.05 else value,
                key=chance.choice(WORDS).encode() if chance.random() < 0.8 else None,
                partition=chance.randrange(PARTITIONS),
                timestamp_ms=START_MS + chance.randrange(100_000),
                headers=[("shop", chance.choice(WORDS).encode())] if number % 3 else [],
            )
        )
    return records


RECORDS = make_records(3000)


@pytest.fixture(scope="module")
def topic(millstream: SharedBroker) -> str:
    return make_topic(millstream, RECORDS, partitions=PARTITIONS)


@pytest.fixture(scope="module")
def oracle() -> Iterator[duckdb.DuckDBPyConnection]:
    """The same records as a table of DuckDB, made without our code."""
    ends = [0] * PARTITIONS
    rows: list[dict[str, Any]] = []
    for it in RECORDS:
        decoded = {} if it.value is None else json.loads(it.value)
        rows.append(
            {
                "id": decoded.get("id"),
                "who": decoded.get("who"),
                "amount": decoded.get("amount"),
                "_partition": it.partition,
                "_offset": ends[it.partition],
                "_timestamp": it.timestamp_ms,
                "_key": None if it.key is None else it.key.decode(),
                "_value": None if it.value is None else it.value.decode(),
            }
        )
        ends[it.partition] += 1
    table = pa.Table.from_pylist(rows)
    moments = table["_timestamp"].cast(pa.timestamp("ms", tz="UTC"))
    table = table.set_column(5, "_timestamp", moments.cast(pa.timestamp("us", tz="UTC")))
    with duckdb.connect() as connection:
        connection.register("records", table)
        yield connection


def random_predicate(chance: random.Random, depth: int) -> str:
    if depth and chance.random() < 0.7:
        left, right = (random_predicate(chance, depth - 1) for _ in range(2))
        return f"({left} {chance.choice(['and', 'or'])} {right})"
    sign = chance.choice(["<", "<=", "=", ">=", ">", "!="])
    moment = f"make_timestamptz({(START_MS + chance.randrange(100_000)) * 1000})"
    text = chance.choice(
        [
            f"_offset {sign} {chance.randrange(1100)}",
            f"_partition {sign} {chance.randrange(PARTITIONS)}",
            f"_timestamp {sign} {moment}",
            f"_offset in ({chance.randrange(900)}, {chance.randrange(900)}, 5)",
            f"_offset between {chance.randrange(500)} and {chance.randrange(1000)}",
            f"_key {sign} '{chance.choice(WORDS)}'",
            "_key is null",
            "_value is not null",
            f"_value like '%{chance.choice(WORDS)}%'",
            f"amount {sign} {chance.randrange(100)}",
            f"who {sign} '{chance.choice(WORDS)}'",
            f"id % 7 {sign} 3",
        ]
    )
    return f"not ({text})" if chance.random() < 0.2 else text


def test_random_predicates_return_what_a_list_of_the_records_returns(
    millstream: SharedBroker, topic: str, oracle: duckdb.DuckDBPyConnection
) -> None:
    chance = random.Random(11)
    for _ in range(25):
        predicate = random_predicate(chance, 3)
        select = "select count(*), sum(id), sum(_offset), max(amount), min(_timestamp) from"
        (expected,) = oracle.execute(f"{select} records where {predicate}").fetchall()
        table = query(f'{select} "{topic}" where {predicate}', millstream.bootstrap_servers)
        (found,) = table.to_pylist()
        assert tuple(found.values()) == expected, predicate


def test_aggregates_joins_and_windows_over_topics(
    millstream: SharedBroker, topic: str, oracle: duckdb.DuckDBPyConnection
) -> None:
    sql = """
        select a.who, count(*), sum(round(b.amount * 10)::bigint)
        from "{0}" a join "{0}" b on a.id = b.id + 1 where a._partition < 2
        group by all order by a.who
    """
    expected = oracle.execute(sql.format("records")).fetchall()
    rows = query(sql.format(topic), millstream.bootstrap_servers).to_pylist()
    assert [tuple(it.values()) for it in rows] == expected


def test_topics_join_files_and_other_tables(
    millstream: SharedBroker, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "people.csv"
    file.write_text("name,city\nalice,Berlin\nbob,Paris\n")
    others = {"shops": pa.table({"shop": ["bob"], "size": [3]})}
    rows = query(
        f"""select distinct city, size from "{topic}" t join '{file}' p on t.who = p.name
            join shops s on header(_headers, 'shop') = s.shop order by city""",
        millstream.bootstrap_servers,
        tables=others,
    ).to_pylist()
    assert rows == [{"city": "Berlin", "size": 3}, {"city": "Paris", "size": 3}]


def test_parameters_are_values(millstream: SharedBroker, topic: str) -> None:
    sql = f'select count(*) as n from "{topic}" where _key = ? and _partition = ?'
    found = query(sql, millstream.bootstrap_servers, parameters=["bob", 1]).to_pylist()
    expected = sum(it.key == b"bob" and it.partition == 1 for it in RECORDS)
    assert found == [{"n": expected}]


def test_only_committed_records_are_read_by_default(millstream: SharedBroker) -> None:
    topic = make_topic(millstream)
    with TransactionalProducer(millstream.bootstrap_servers, topic) as producer:
        producer.init()
        producer.run(topic, [b"kept"], committed=True)
        producer.run(topic, [b"aborted"], committed=False)
        producer.produce(topic, [b"open"])
        sql = f'select _value from "{topic}" order by _offset'
        address = millstream.bootstrap_servers
        assert query(sql, address).to_pydict() == {"_value": ["kept"]}
        everything = query(sql, address, read_committed=False)
        assert everything.to_pydict() == {"_value": ["kept", "aborted", "open"]}
        producer.end(committed=False)


def consumed(broker: Broker, topic: str) -> list[tuple[int, bytes | None]]:
    """What a read_committed consumer sees: offsets and values of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "unused",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    while True:
        message = consumer.poll(PATIENCE)
        assert message is not None
        if message.error() is None:
            found.append((message.offset(), message.value()))
        elif message.error().code() == KafkaError._PARTITION_EOF:
            consumer.close()
            return found


def test_queries_see_what_consumers_see(tmp_path: Path) -> None:
    """Compacted records, aborted transactions, deleted and excised records, also at the end."""
    at_once = {"log.cleaner.backoff.ms": 50, "log.retention.check.interval.ms": 50}
    with Broker.start(tmp_path, at_once) as broker, Cluster(broker.bootstrap_servers) as cluster:
        compacts = {
            **KEEP,
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "segment.ms": "1",
        }
        create_topics(
            cluster,
            [
                NewTopic("compacted", 1, compacts),
                *(NewTopic(it, 1, KEEP) for it in ("aborted", "deleted", "excised")),
            ],
        )
        address = broker.bootstrap_servers
        values = [b'{"n": %d}' % number for number in range(60)]
        for topic in ("deleted", "excised"):
            produce(address, topic, [Sent(it, b"k%d" % (n % 6)) for n, it in enumerate(values)])
        with TransactionalProducer(address, "aborted") as producer:
            producer.init()
            for number in range(0, 60, 10):
                producer.run("aborted", values[number : number + 10], committed=number % 20 == 0)
        admin = AdminClient({"bootstrap.servers": address})
        deleted = admin.delete_records([TopicPartition("deleted", 0, 25)])
        next(iter(deleted.values())).result(PATIENCE)
        excise(address, "excised", "k5")
        for number in range(12):
            moment_ms = START_MS + 1000 * number  # each in a segment of its own
            record = Sent(values[number], b"k%d" % (number % 3), timestamp_ms=moment_ms)
            produce(address, "compacted", [record])
        deadline = time.monotonic() + PATIENCE
        while len(consumed(broker, "compacted")) > 4:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for topic, count in [
            ("compacted", None),
            ("aborted", 30),
            ("deleted", 35),
            ("excised", 50),
        ]:
            sql = f"select _offset, _value_bytes, n from {topic} order by _offset"
            with Query(sql, address) as running:
                rows = running.arrow().to_pylist()
                assert running.warnings == []
            expected = consumed(broker, topic)
            assert [(it["_offset"], it["_value_bytes"]) for it in rows] == expected, topic
            assert [it["n"] for it in rows] == [
                json.loads(value or b"")["n"] for _, value in expected
            ]
            assert count is None or len(rows) == count, topic


def excise(address: str, topic: str, key: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["excise", "--topic", topic, "--key", key, "--yes", "-b", address])
    assert not ended.value.code


def test_avro_values_have_the_columns_of_the_registered_schema(
    millstream: SharedBroker,
) -> None:
    """Records of two versions of a schema, and one that is no Avro."""
    first = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    who = {"name": "who", "type": ["null", "string"], "default": None}
    second = {**first, "fields": [*first["fields"], who]}
    topic = make_topic(millstream)
    with running_registry() as registry:
        records = []
        for schema, row in [(first, {"id": 1}), (second, {"id": 2, "who": "alice"})]:
            number = registry.add(f"{topic}-value", schema)
            content = io.BytesIO()
            fastavro.schemaless_writer(content, schema, row)
            records.append(Sent(b"\0" + number.to_bytes(4, "big") + content.getvalue()))
        produce(millstream.bootstrap_servers, topic, records)
        settings = {"schema.registry.url": registry.url}
        sql = f'select id, who from "{topic}" order by id'
        found = query(sql, millstream.bootstrap_servers, settings=settings)
        assert found.to_pylist() == [{"id": 1, "who": None}, {"id": 2, "who": "alice"}]
        produce(millstream.bootstrap_servers, topic, [Sent(b"not Avro")])
        with pytest.raises(QueryFailed, match=rf"{topic}\[0\]@2 does not fit the schema"):
            query(sql, millstream.bootstrap_servers, settings=settings)
        counted = f'select count(id) as n, count(_error) as e from "{topic}"'
        found = query(counted, millstream.bootstrap_servers, settings=settings)
        assert found.to_pylist() == [{"n": 2, "e": 1}]


def test_results_are_data_frames(millstream: SharedBroker, topic: str) -> None:
    sql = f'select _key, count(*) as n from "{topic}" group by all order by n desc limit 2'
    frame = query(sql, millstream.bootstrap_servers).to_pandas()
    assert list(frame.columns) == ["_key", "n"]
    assert len(frame) == 2


def test_a_query_ends_where_the_topic_ended_when_it_began(millstream: SharedBroker) -> None:
    topic = make_topic(millstream, [Sent(b"a"), Sent(b"b")])
    with Query(f'select count(*) as n from "{topic}"', millstream.bootstrap_servers) as running:
        produce(millstream.bootstrap_servers, topic, [Sent(b"c")])
        assert running.arrow().to_pydict() == {"n": [2]}


def test_names_with_dots_need_no_quotes(millstream: SharedBroker) -> None:
    name = f"shop.{millstream.unique_topic().replace('-', '_')}"
    produce(millstream.bootstrap_servers, name, [Sent(b"x")])
    sql = f"select _value from {name}"
    assert query(sql, millstream.bootstrap_servers).to_pydict() == {"_value": ["x"]}


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("selec 1", "syntax error"),
        ("select 1; select 2", "write one statement, not 2"),
        ("select * from nowhere_at_all", "there is no topic nowhere_at_all"),
        ("set threads = 2", "write a SELECT, not a SET"),
        ("copy (select 1) to 'x.csv'", "write a SELECT, not a COPY"),
        ('select missing from "{topic}"', "missing"),
        ('select _value::int from "{topic}" where _value is not null', "Could not convert"),
    ],
)
def test_mistakes_are_named(millstream: SharedBroker, topic: str, sql: str, message: str) -> None:
    with pytest.raises(QueryFailed, match=message):
        query(sql.format(topic=topic), millstream.bootstrap_servers)


def test_a_similar_name_is_suggested(millstream: SharedBroker, topic: str) -> None:
    with pytest.raises(QueryFailed, match=f"did you mean {topic}"):
        query(f'select * from "{topic}x"', millstream.bootstrap_servers)


def test_records_that_do_not_fit_are_errors_or_rows(millstream: SharedBroker) -> None:
    topic = make_topic(millstream, [Sent(b'{"n": %d}' % n) for n in range(30)] + [Sent(b"\xff")])
    address = millstream.bootstrap_servers
    with pytest.raises(QueryFailed, match=rf"{topic}\[0\]@30 does not fit"):
        query(f'select sum(n) from "{topic}"', address)
    found = query(f'select sum(n) s, count(_error) e, count(*) c from "{topic}"', address)
    assert found.to_pylist() == [{"s": 435, "e": 1, "c": 31}]
    assert query(f'select sum(n) s from "{topic}" where _offset < 30', address).num_rows == 1
    found = query(f'select _value_bytes b from "{topic}" where _offset = 30', address)
    assert found.to_pydict() == {"b": [b"\xff"]}
    # A constant that looks like a column is none: nothing is decoded for it.
    assert query(f"select _offset from \"{topic}\" where _value = 'n'", address).num_rows == 0
    found = query(f"select * from \"{topic}\" where _offset < 1 and _value <> '_error'", address)
    assert "_error" not in found.column_names


def test_results_are_written_to_files(millstream: SharedBroker, topic: str, tmp_path: Path) -> None:
    sql = f'select _partition, _offset from "{topic}";'
    path = tmp_path / "it's.parquet"
    with Query(sql, millstream.bootstrap_servers) as running:
        assert running.write(str(path)) == len(RECORDS)
    assert pq.read_table(path).num_rows == len(RECORDS)
    with (
        Query(sql, millstream.bootstrap_servers) as running,
        pytest.raises(ConfigError, match="a result is written as"),
    ):
        running.write("result.xlsx")


def test_a_query_can_be_cancelled(millstream: SharedBroker, topic: str) -> None:
    sql = f'select count(*) from range(10000000000000), "{topic}"'
    with Query(sql, millstream.bootstrap_servers) as running:
        threading.Timer(0.2, running.cancel).start()
        with pytest.raises(QueryFailed, match="cancelled"):
            running.arrow()
        assert running.is_cancelled


def test_progress_counts_what_was_read(millstream: SharedBroker, topic: str) -> None:
    with Query(f'select count(*) from "{topic}"', millstream.bootstrap_servers) as running:
        running.arrow()
        assert running.progress.rows == running.progress.total == len(RECORDS)
        assert running.progress.size_bytes > 0
        assert running.warnings == []


def test_a_secured_cluster_is_queried_with_the_clients_settings(tmp_path: Path) -> None:
    """By a user who may; one who may not gets the topic and the missing right named."""
    rights = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:alice",
    }
    users = {"alice": "secret", "bob": "secret"}
    with Broker.start(tmp_path, rights, security="SASL_SSL", users=users) as broker:
        settings = broker.client_settings("alice")
        address = broker.bootstrap_servers
        produce(address, "orders", [Sent(b'{"n": 5}')], settings)
        found = query("select n from orders", address, settings=settings)
        assert found.to_pydict() == {"n": [5]}
        with pytest.raises(ApiError, match="orders") as refused:
            query("select n from orders", address, settings=broker.client_settings("bob"))
        assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "DESCRIBE" in str(refused.value).upper()
