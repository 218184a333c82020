"""Pages of the console with 10,000 partitions in 1,000 topics, and 1,000 groups: seconds until a
page is there, as a script loads it, and the CPU time of the console's process for a sample."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator, Sequence

from benchmarks.measurement import Measurement
from benchmarks.targets import Scale, Target
from millstream.admin.groups import commit_offsets
from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.console.sampler import take_sample
from millstream.console.server import ConsoleServer
from millstream.console.settings import ConsoleSettings

TOPICS, PARTITIONS = 1000, 10
ROUNDS = 7
AT_ONCE = 50
PAGES = (
    "/",
    "/topics",
    "/topics?sort=-size&page=3",
    "/topics?q=99",
    "/topics/bench-0005",
    "/cluster",
    "/groups",
    "/groups?sort=-lag&page=3",
)


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    for target in targets:
        topics = 20 if scale.is_quick else TOPICS
        with Cluster(target.bootstrap) as cluster:
            fill(cluster, topics)
            yield sampling(target, cluster, 1 if scale.is_quick else ROUNDS)
        yield from pages(target, 1 if scale.is_quick else ROUNDS)


def fill(cluster: Cluster, topics: int) -> None:
    """Topics, and as many groups, each of which lags in one topic."""
    names = [f"bench-{number:04}" for number in range(topics)]
    for first in range(0, topics, AT_ONCE):
        create_topics(cluster, [NewTopic(it, PARTITIONS) for it in names[first : first + AT_ONCE]])
    for name in names:
        places = {(name, index): 0 for index in range(PARTITIONS)}
        commit_offsets(cluster, f"{name}-group", places)


def sampling(target: Target, cluster: Cluster, rounds: int) -> Measurement:
    measurement = Measurement("console, one sample", "CPU s", "lower is better")
    for _ in range(rounds):
        started = time.process_time()
        take_sample(cluster)
        measurement.add(target.name, time.process_time() - started)
    return measurement


def pages(target: Target, rounds: int) -> Iterator[Measurement]:
    server = ConsoleServer(ConsoleSettings(target.bootstrap), "127.0.0.1:0")
    server.start()
    try:
        load(server.url, "/")  # waits for the first sample
        for path in PAGES:
            measurement = Measurement(f"console, {path}", "s", "lower is better")
            for _ in range(rounds):
                measurement.add(target.name, load(server.url, path))
            yield measurement
    finally:
        server.stop()


def load(url: str, path: str) -> float:
    """Seconds until the whole page is there."""
    request = urllib.request.Request(url.rstrip("/") + path, headers={"Accept": "text/html"})
    started = time.perf_counter()
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()
    return time.perf_counter() - started
