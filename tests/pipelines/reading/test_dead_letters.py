"""Dead letters of readers: all that a record was, and replayed by `millstream dlq`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import run
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from millstream.errors import ApiError
from millstream.pipelines.offsets import OffsetRange
from millstream.pipelines.reading.dead_letters import DeadLetters
from millstream.pipelines.reading.decoding.results import Failure
from millstream.pipelines.reading.fetching import fetch_columns
from millstream.pipelines.reading.options import ReadOptions, parse_read_options
from tests.peers.cache import PeerMissing
from tests.peers.kafka import start_kafka
from tests.pipelines.conftest import Topics, run_to_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))
BAD = Failure(0, "wrong type", "field id is a string, not long")


def options_for(topics: Topics, topic: str, **given: str) -> ReadOptions:
    base = {
        "kafka.bootstrap.servers": topics.bootstrap,
        "subscribe": topic,
        "valueFormat": "json",
        "mode": "deadletter",
        "includeHeaders": "true",
    }
    return parse_read_options(base | given, streaming=False)


def letters_in(topics: Topics, topic: str) -> list[Any]:
    """All records of a topic's only partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": topics.bootstrap,
            "group.id": "x",
            "enable.partition.eof": True,
            "enable.auto.commit": False,  # else its close waits for the group's coordinator
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Any] = []
        while (message := consumer.poll(30)) is not None and not message.error():
            found.append(message)
        assert message is not None
        return found
    finally:
        consumer.close()


def write_bad_records(topics: Topics, topic: str, values: list[bytes | None], **given: str) -> None:
    """Fill the topic, read it and give up all of it."""
    topics.fill(topic, values)
    give_up(options_for(topics, topic, **given), OffsetRange(topic, 0, 0, len(values)))


def give_up(options: ReadOptions, wanted: OffsetRange) -> None:
    letters = DeadLetters(options, wanted)
    for columns in fetch_columns(options, wanted):
        letters.add(columns, [BAD._replace(row=row) for row in range(columns.row_count)])
    letters.flush()


def millstream(topics: Topics, *arguments: str) -> Any:
    command = [MILLSTREAM, "dlq", *arguments, "--json"]
    done = run(
        [*command, "-b", topics.bootstrap], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_letter_has_the_record_and_all_about_it(topics: Topics) -> None:
    topic = topics.create()
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    producer.produce(topic, b"bad", b"k", headers=[("trace", b"7")], timestamp=1_700_000_000_000)
    assert producer.flush(30) == 0
    options = options_for(topics, topic, pipeline="revenue", pipelineVersion="3")
    wanted = OffsetRange(topic, 0, 0, 1)
    [columns] = fetch_columns(options, wanted)
    letters = DeadLetters(options, wanted)
    letters.add(columns, [BAD])
    letters.flush()
    [letter] = letters_in(topics, f"dlq.{topic}")
    assert letter.key() == f"{topic}/0/0".encode()
    assert letter.value() == b"bad"
    assert letter.headers() == [
        ("trace", b"7"),
        ("__dlq.errors.topic", topic.encode()),
        ("__dlq.errors.partition", b"0"),
        ("__dlq.errors.offset", b"0"),
        ("__dlq.errors.timestamp", b"1700000000000"),
        ("__dlq.errors.group", b"revenue"),
        ("__dlq.errors.reason", b"wrong type"),
        ("__dlq.errors.message", b"field id is a string, not long"),
        ("__dlq.errors.pipeline", b"revenue"),
        ("__dlq.errors.pipeline.version", b"3"),
        ("__dlq.errors.key", b"k"),
    ]


def test_letters_are_written_in_pieces_where_the_topic_wants_them_small(topics: Topics) -> None:
    topic, small = topics.create(), topics.create(max_message_bytes="2000")
    values: list[bytes | None] = [b"x" * 500, b"y" * 500, b"z" * 1500, b"w" * 5000, None]
    write_bad_records(topics, topic, values, deadLetterTopic=small)
    letters = letters_in(topics, small)
    assert [it.value() for it in letters] == [*values[:3], None, None]
    assert b"too large to be copied" in dict(letters[3].headers())["__dlq.errors.message"]
    assert b"too large" not in dict(letters[4].headers())["__dlq.errors.message"]


def test_letters_of_a_dead_letter_topic_stay_where_they_are(topics: Topics) -> None:
    topic = topics.create()
    write_bad_records(topics, topic, [b"a"])
    give_up(options_for(topics, f"dlq.{topic}"), OffsetRange(f"dlq.{topic}", 0, 0, 1))
    assert len(letters_in(topics, f"dlq.{topic}")) == 1


def test_letters_of_a_dead_letter_topic_go_where_it_is_said(topics: Topics) -> None:
    topic, poison = topics.create(name=f"dlq.{uuid4().hex[:10]}"), topics.create()
    write_bad_records(topics, topic, [b"a"], deadLetterTopic=poison)
    assert [it.value() for it in letters_in(topics, poison)] == [b"a"]


def test_letter_of_a_tombstone_leaves_out_a_key_that_is_too_large(topics: Topics) -> None:
    topic, small = topics.create(), topics.create(max_message_bytes="2000")
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    producer.produce(topic, None, b"k" * 5000)
    assert producer.flush(30) == 0
    give_up(options_for(topics, topic, deadLetterTopic=small), OffsetRange(topic, 0, 0, 1))
    [letter] = letters_in(topics, small)
    headers = dict(letter.headers())
    assert "__dlq.errors.key" not in headers
    assert b"too large to be copied" in headers["__dlq.errors.message"]


def test_letter_that_cannot_be_written_is_an_error(topics: Topics) -> None:
    topic = topics.create()
    with pytest.raises(ApiError, match="topic no/name"):
        write_bad_records(topics, topic, [b"a"], deadLetterTopic="no/name")


def test_stream_writes_letters_and_the_command_line_replays_them(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create()
    topics.fill(topic, [b'{"id": 1}', b'{"id": "2"}', b"{}{}", b'{"id": 3}'])
    letters = f"dlq.{topic}"

    def read_all(schema: str) -> list[Any]:
        seen: list[Any] = []
        writer = (
            spark.readStream.format("millstream")
            .schema(schema)
            .option("kafka.bootstrap.servers", topics.bootstrap)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("valueFormat", "json")
            .option("mode", "deadletter")
            .option("pipeline", "orders")
            .load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .foreachBatch(lambda batch, _: seen.extend(row.id for row in batch.collect()))
        )
        run_to_end(writer.start)
        return seen

    assert read_all("id long") == [1, 3]
    counted = [it for it in millstream(topics, "list") if it["topic"] == letters]
    assert [(it["group"], it["source"], it["reason"], it["letters"]) for it in counted] == [
        ("orders", topic, "malformed", 1),
        ("orders", topic, "wrong type", 1),
    ]
    [shown] = millstream(topics, "show", letters, "--reason", "wrong type")
    assert (shown["key"], shown["value"], shown["has_copy"]) == ("1", '{"id": "2"}', True)
    replayed = millstream(topics, "replay", letters, "--reason", "wrong type", "--execute")
    assert replayed["sent"] == 1
    # Through a pipeline that was mended: it takes the number as the string that it is.
    assert read_all("id string") == ["2"]
    [*_, last] = letters_in(topics, topic)
    assert (last.key(), last.value()) == (b"1", b'{"id": "2"}')
    assert millstream(topics, "replay", letters, "--reason", "wrong type", "--execute")["sent"] == 0


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Topics]:
    try:
        server = start_kafka(tmp_path_factory.mktemp("kafka"), {})
    except PeerMissing as missing:
        pytest.skip(str(missing))
    yield Topics(server)
    server.stop()


@pytest.mark.slow
@pytest.mark.java
def test_letters_go_to_apache_kafka_as_well(apache: Topics) -> None:
    topic = apache.create()
    write_bad_records(apache, topic, [b"a", None])
    assert [it.value() for it in letters_in(apache, f"dlq.{topic}")] == [b"a", None]
