"""The console: latency of Produce with 200 browsers that follow its pages, and without.

Browsers are connections in a process of their own that read the live streams of some pages, as
htmx does. One record at a time is produced, so that every delay shows. Blocks with and without the
browsers take turns on one broker with a console; the best block of each counts.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from tests.peers.servers import free_port

from benchmarks.measurement import Measurement, percentile
from benchmarks.raw_client import connect, produce_request, receive_frame
from benchmarks.targets import MillstreamTarget, Scale, Target, create_topic, running

BROWSERS = 200
PAGES = ("/", "/topics", "/cluster")
BLOCK_SECONDS = 5.0  # pages are refreshed every 2 to 5 s
ROUNDS = 10
WITH, WITHOUT = f"{BROWSERS} browsers", "no browser"

FOLLOW = """
import asyncio, sys
port, count, pages = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
async def follow(path, seen):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path}?live=1 HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n".encode())
    await reader.readuntil(b"data: ")
    seen.append(path)
    if len(seen) == count:
        print("following", flush=True)
    while await reader.read(65536):
        pass
    sys.exit("the console ended a stream")
async def main():
    seen = []
    await asyncio.gather(*(follow(pages[it % len(pages)], seen) for it in range(count)))
asyncio.run(main())
"""


class ConsoleTarget(MillstreamTarget):
    """A broker with a console."""

    def __init__(self) -> None:
        super().__init__()
        self.console_port = free_port()

    def command(self) -> Sequence[str]:
        return [*super().command(), "--console", f"127.0.0.1:{self.console_port}"]


class Browsers:
    """Open while in a `with`."""

    def __init__(self, target: ConsoleTarget, count: int) -> None:
        command = [sys.executable, "-c", FOLLOW, str(target.console_port), str(count), *PAGES]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> Browsers:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "following\n"
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.poll() is None, "the browsers are gone"
        self._process.kill()
        self._process.communicate()


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    """Only ours."""
    if not any(isinstance(it, MillstreamTarget) for it in targets):
        return
    figures = {
        share: Measurement(
            f"Produce of one record, {what}",
            "us",
            "lower is better",
            bar=1.1 if share == 0.5 else None,
            aim=1.0 if share == 0.5 else None,
            subject=WITH,
            peer=WITHOUT,
        )
        for share, what in ((0.5, "median"), (0.99, "99th percentile"))
    }
    browsers, seconds = (10, 0.2) if scale.is_quick else (BROWSERS, BLOCK_SECONDS)
    with running(ConsoleTarget()) as target:
        assert isinstance(target, ConsoleTarget)
        topic = create_topic(target, partitions=1)
        for number in range(2 if scale.is_quick else 1 + ROUNDS):
            blocks = {WITHOUT: latencies(target, topic, seconds)}
            with Browsers(target, browsers):
                blocks[WITH] = latencies(target, topic, seconds)
            for name, block in blocks.items():
                for share, measurement in figures.items():
                    if number:  # the first round warms up
                        measurement.add(name, percentile(block, share))
    yield from figures.values()


def latencies(target: Target, topic: str, seconds: float) -> list[float]:
    """Microseconds of single requests, one after the other."""
    request = produce_request(topic, 0, 1)
    found: list[float] = []
    end = time.perf_counter() + seconds
    with connect(target.bootstrap) as connection:
        while (started := time.perf_counter()) < end:
            connection.sendall(request)
            receive_frame(connection)
            found.append((time.perf_counter() - started) * 1e6)
    return found
