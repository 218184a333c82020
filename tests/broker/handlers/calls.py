"""Shortcuts for tests of handlers: topics, records and offsets over the wire."""

from __future__ import annotations

from typing import Any

from tests.peers.wire import Wire, batch


def create_topic(wire: Wire, name: str, partitions: int = 1, **settings: str) -> None:
    """Settings are Kafka's names with underscores for dots."""
    configs = [{"name": key.replace("_", "."), "value": it} for key, it in settings.items()]
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": configs,
    }
    answer = wire.call("create_topics", 7, topics=[topic], timeout=10_000)
    assert answer.topics[0].error_code == 0


def produce(
    wire: Wire, topic: str, records: bytes, *, partition: int = 0, acks: int = -1, version: int = 9
) -> Any:
    """The answer for the one partition."""
    data = [{"index": partition, "records": records}]
    answer = wire.call(
        "produce",
        version,
        acks=acks,
        timeout=5_000,
        topic_data=[{"name": topic, "partition_data": data}],
    )
    return answer.responses[0].partition_responses[0]


def append(wire: Wire, topic: str, *values: bytes, partition: int = 0, **options: Any) -> int:
    """Produce a batch; its first offset."""
    answer = produce(wire, topic, batch(list(values), **options), partition=partition)
    assert answer.error_code == 0
    return int(answer.base_offset)


def topic_id_of(wire: Wire, topic: str) -> Any:
    return wire.call("metadata", 12, topics=[{"name": topic}]).topics[0].topic_id
