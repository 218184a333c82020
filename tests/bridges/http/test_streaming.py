"""A topic as server-sent events."""

from __future__ import annotations

import json

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream.bridges.http.shapes import BadRequest
from millstream.bridges.http.streaming import TopicStream, event, parse_positions, readable
from millstream.testing.pytest_plugin import SharedBroker


def test_positions_are_read_back() -> None:
    text = event("record", {}, {1: 7, 0: 18}).decode()
    assert text == "id: 0:18,1:7\nevent: record\ndata: {}\n\n"
    assert parse_positions("0:18,1:7") == {0: 18, 1: 7}
    for wrong in ("", "0", "0:x", "0:1,", "a:1", "0:-1"):
        with pytest.raises(BadRequest):
            parse_positions(wrong)


def test_bytes_are_text_or_base64() -> None:
    assert readable(None) is None
    assert readable("é\n".encode()) == "é\n"
    assert readable(b"\xff") == {"base64": "/w=="}


def read(stream: TopicStream, count: int) -> list[str]:
    found: list[str] = []
    for _ in range(240):
        found += [it.decode() for it in stream.read(0.5)]
        if len(found) >= count:
            break
    return found


def data_of(text: str) -> dict[str, object]:
    (line,) = [it for it in text.splitlines() if it.startswith("data: ")]
    found: dict[str, object] = json.loads(line.removeprefix("data: "))
    return found


def test_stream_resumes_where_it_was_and_tells_what_was_deleted(millstream: SharedBroker) -> None:
    topic, settings = millstream.unique_topic(), millstream.client_settings()
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 1)])[topic].result(60)
    producer = Producer(settings)
    for number in range(6):
        producer.produce(topic, f"value {number}", partition=0)
    assert producer.flush(60) == 0

    stream = TopicStream(settings, topic, "earliest", {})
    first = read(stream, 6)
    stream.close()
    assert [data_of(it)["value"] for it in first] == [f"value {it}" for it in range(6)]
    assert first[2].startswith("id: 0:3\n")

    admin.delete_records([TopicPartition(topic, 0, 5)])[TopicPartition(topic, 0, 5)].result(60)
    resumed = TopicStream(settings, topic, "latest", parse_positions("0:3"))
    gap, last = read(resumed, 2)
    resumed.close()
    assert "event: gap" in gap
    assert data_of(gap) == {"partition": 0, "first": 3, "last": 4}
    assert data_of(last)["offset"] == 5


def test_topic_that_does_not_exist_is_named(millstream: SharedBroker) -> None:
    settings = millstream.client_settings() | {"allow.auto.create.topics": "false"}
    with pytest.raises(BadRequest, match="nowhere-at-all") as raised:
        TopicStream(settings, "nowhere-at-all", "latest", {})
    assert raised.value.status == 404
