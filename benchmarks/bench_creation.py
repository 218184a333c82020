"""Creating 1,000 partitions: as one topic, and as 1,000 topics of one partition each.

Both brokers answer CreateTopics when the topics are committed, before the logs exist. So two times
are taken for one topic: until the answer, and until every partition has taken a record.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence

from benchmarks.bench_footprint import PARTITIONS, accepts_records
from benchmarks.measurement import Measurement
from benchmarks.targets import Scale, Target, create_topic


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    answered = Measurement("create 1,000 partitions, answer", "s", "lower is better", bar=2)
    usable = Measurement("create 1,000 partitions, usable", "s", "lower is better", bar=1)
    topics = Measurement("create 1,000 topics, answer", "s", "lower is better", bar=2)
    for target in targets:
        if target.name == "null":
            continue
        with target.fresh() as own:
            create_topic(own, partitions=1)  # loads and compiles what a first request needs
            for _ in range(scale.rounds):
                started = time.perf_counter()
                create_topic(own, partitions=PARTITIONS)
                answered.add(target.name, time.perf_counter() - started)
                while not accepts_records(own):
                    time.sleep(0.001)
                usable.add(target.name, time.perf_counter() - started)
                topics.add(target.name, _create_topics(own))
    yield from (answered, usable, topics)


def _create_topics(target: Target) -> float:
    """Seconds until one request has created as many topics of one partition."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    admin.list_topics(timeout=60)  # connects
    prefix = uuid.uuid4().hex[:8]
    wanted = [NewTopic(f"{prefix}-{number}", 1, 1) for number in range(PARTITIONS)]
    started = time.perf_counter()
    for future in admin.create_topics(wanted, operation_timeout=30).values():
        future.result(60)
    return time.perf_counter() - started
