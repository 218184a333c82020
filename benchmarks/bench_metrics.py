"""Metrics: CPU time of the broker for a one-record request with and without them; cost of scrapes.

The same pre-encoded Produce requests go to one broker that serves metrics, in turns of a few
hundred: from a client whose requests are metered, and from one whose requests are not
(`half_metered.py`). What a scrape costs is measured for 1,000 topics with 5,000 partitions, and so
is the delay of pings (ApiVersions, one every two milliseconds) while the broker is scraped, and
while it is not.
"""

from __future__ import annotations

import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence

from tests.peers.servers import free_port

from benchmarks.bench_conditional import cpu_ns, error_code
from benchmarks.bench_loop_lag import Pings
from benchmarks.half_metered import PLAIN
from benchmarks.measurement import Measurement, percentile
from benchmarks.raw_client import connect, produce_request, receive_frame
from benchmarks.targets import MillstreamTarget, Scale, Target, create_topic, running

ON, OFF = "metrics", "no metrics"
BLOCK = 400  # requests, then it is the other one's turn
BLOCKS = 40
ROUNDS = 15
IN_FLIGHT = 20
TOPICS, PARTITIONS = 1000, 5
SCRAPES = 5


class MeteredTarget(MillstreamTarget):
    """A broker that serves metrics."""

    def __init__(self) -> None:
        super().__init__()
        self.name = ON
        self._metrics_port = free_port()

    def command(self) -> Sequence[str]:
        _, *arguments = super().command()
        metrics = ("--metrics", f"127.0.0.1:{self._metrics_port}")
        return [sys.executable, "-m", "benchmarks.half_metered", *arguments, *metrics]

    def scrape(self) -> bytes:
        url = f"http://127.0.0.1:{self._metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as response:
            body: bytes = response.read()
            return body


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    """Only ours."""
    ours = next((it for it in targets if isinstance(it, MillstreamTarget)), None)
    if ours is None:
        return
    with running(MeteredTarget()) as metered:
        assert isinstance(metered, MeteredTarget)
        for name, acks in (("acks=1", 1), ("acks=all", -1)):
            yield compare(f"one-record request, {name}", metered, acks, scale)
        yield from scraped(metered, scale)


def compare(name: str, metered: MeteredTarget, acks: int, scale: Scale) -> Measurement:
    """Requests per CPU second of the broker, in turns."""
    measurement = Measurement(
        name, "requests/CPU s", bar=0.98, aim=1.0, subject=ON, peer=OFF, is_paired=True
    )
    blocks = 2 if scale.is_quick else BLOCKS
    for number in range(2 if scale.is_quick else 1 + ROUNDS):
        names = (ON, OFF) if number % 2 else (OFF, ON)  # the later topic is no better off
        lanes = {name: Lane(metered, acks, name == ON) for name in names}
        for block in range(blocks):
            for lane in sorted(lanes, reverse=bool(block % 2)):
                lanes[lane].send()
        metered.scrape()
        for lane, it in lanes.items():
            if number:  # the first round warms up
                measurement.add(lane, blocks * BLOCK / (it.spent_ns / 1e9))
            it.close()
    return measurement


class Lane:
    """A topic and a connection, with requests in flight."""

    def __init__(self, target: Target, acks: int, is_metered: bool) -> None:
        self._target = target
        self._topic = create_topic(target, partitions=1)
        self._request = produce_request(self._topic, 0, acks)
        if not is_metered:  # the client's id comes first; both have the same length
            self._request = self._request.replace(b"bench", PLAIN.encode(), 1)
        self._connection = connect(target.bootstrap)
        self.spent_ns = 0

    def send(self) -> None:
        before, sent = cpu_ns(self._target), 0
        for answered in range(BLOCK):
            while sent < BLOCK and sent - answered < IN_FLIGHT:
                self._connection.sendall(self._request)
                sent += 1
            code = error_code(receive_frame(self._connection), self._topic)
            assert code == 0, f"error {code}"
        self.spent_ns += cpu_ns(self._target) - before

    def close(self) -> None:
        self._connection.close()


def scraped(metered: MeteredTarget, scale: Scale) -> Iterator[Measurement]:
    create_topics(metered, 20 if scale.is_quick else TOPICS)
    delays: Mapping[str, list[float]] = {"scraped": [], "not scraped": []}
    cost = Measurement("CPU time of a scrape", "ms", "lower is better", subject=ON, peer=OFF)
    scrapes = 1 if scale.is_quick else SCRAPES
    size = 0
    for _ in range(scrapes):
        with Pings(metered) as pings:
            before = cpu_ns(metered)
            size = len(metered.scrape())
            cost.add(ON, (cpu_ns(metered) - before) / 1e6)
        delays["scraped"].extend(pings.milliseconds)
        with Pings(metered) as pings:
            time.sleep(scale.seconds(0.5))
        delays["not scraped"].extend(pings.milliseconds)
    cost.notes[ON] = f"{size / 1e6:.1f} MB of text"
    yield cost
    for name, share in (("p50", 0.5), ("p99", 0.99), ("maximum", 1.0)):
        measurement = Measurement(
            f"{name} of a ping during scrapes of 5,000 partitions",
            "ms",
            "lower is better",
            subject="scraped",
            peer="not scraped",
        )
        for lane, found in delays.items():
            measurement.add(lane, percentile(found, share))
        yield measurement


def create_topics(target: Target, count: int) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    topics = [NewTopic(f"wide-{number:04}", PARTITIONS, 1) for number in range(count)]
    for made in admin.create_topics(topics, operation_timeout=60).values():
        made.result(120)
