"""One-record requests, pre-encoded, over 8 connections with 20 in flight each: Produce, Fetch.

Produce also with every record to another one of 1,000 partitions: a broker that syncs one file per
partition pays for it here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from benchmarks.measurement import Measurement, interleave
from benchmarks.raw_client import (
    connect,
    fetch_request,
    produce_request,
    receive_frame,
    run_windows,
)
from benchmarks.targets import Scale, Target, create_topic, wait_for_leaders

PARTITIONS = 1000


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    rates: dict[str, Measurement] = {}
    for name, acks, partitions in (
        ("one-record requests, acks=1", 1, 1),
        ("one-record requests, acks=all", -1, 1),
        ("one-record requests, acks=all, 1,000 partitions", -1, PARTITIONS),
    ):
        requests = {}
        for target in targets:
            topic = create_topic(target, partitions=partitions)
            requests[target.name] = [produce_request(topic, p, acks) for p in range(partitions)]
        rates[name] = interleave(
            Measurement(name, "requests/s", bar=1.0, aim=1.5),
            targets,
            scale.rounds,
            lambda target, r=requests: rate(target, r[target.name], scale),  # type: ignore[misc]
        )
        yield rates[name]
    yield _spread(rates)
    yield _fetches(targets, scale)


def _fetches(targets: Sequence[Target], scale: Scale) -> Measurement:
    """The same record again and again, by consumers without a session."""
    targets = [it for it in targets if it.name != "null"]
    requests = {target.name: [_fetch_request(target)] for target in targets}
    return interleave(
        Measurement("one-record fetches", "requests/s", bar=1.0, aim=1.5),
        targets,
        scale.rounds,
        lambda target: rate(target, requests[target.name], scale),
    )


def _fetch_request(target: Target) -> bytes:
    from confluent_kafka import TopicCollection
    from confluent_kafka.admin import AdminClient

    topic = create_topic(target, partitions=1)
    wait_for_leaders(target, topic, 1)
    with connect(target.bootstrap) as connection:
        connection.sendall(produce_request(topic, 0, acks=-1))
        receive_frame(connection)
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    found = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
    halves = found.topic_id.get_most_significant_bits(), found.topic_id.get_least_significant_bits()
    return fetch_request(struct.pack(">qq", *halves), 0, offset=0)


def _spread(rates: dict[str, Measurement]) -> Measurement:
    """Our own rate over 1,000 partitions against our rate on one."""
    one, many = (
        rates["one-record requests, acks=all"],
        rates["one-record requests, acks=all, 1,000 partitions"],
    )
    spread = Measurement(
        "1,000 partitions against one, acks=all, ours",
        "requests/s",
        bar=0.7,
        subject="1,000 partitions",
        peer="one partition",
    )
    spread.samples = {
        "1,000 partitions": many.samples.get("millstream", []),
        "one partition": one.samples.get("millstream", []),
    }
    return spread


def rate(target: Target, requests: Sequence[bytes], scale: Scale) -> float:
    seconds = scale.seconds(4.0)
    answers = run_windows(target.bootstrap, requests, connections=8, in_flight=20, seconds=seconds)
    return sum(answers) / seconds
