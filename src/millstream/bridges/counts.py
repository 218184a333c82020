"""What passed through a bridge, and what did not: counters by name and labels, for all threads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable

from millstream.metrics.exposition import Family, counter, labels

Series = tuple[str, tuple[tuple[str, str], ...]]

PREFIX = "millstream_bridge_"
SERIES_MAX = 10_000  # labels come from the bridge's own settings and reasons; this is a safeguard

HELP = {
    "http_requests": "Requests by route and status.",
    "records_in": "Records that the cluster acknowledged.",
    "records_refused": "Records that the cluster refused or did not acknowledge in time.",
    "records_out": "Records that were sent to readers or accepted by endpoints.",
    "hooks_refused": "Webhooks that were refused, by reason.",
    "hooks_repeated": "Webhooks with an id that was written before.",
    "webhook_attempts": "Requests to endpoints, by outcome.",
    "webhook_pauses": "How often an endpoint was paused after failures.",
    "statsd_packets": "Packets received.",
    "statsd_samples": "Samples in them.",
    "statsd_bad_lines": "Lines that are no sample, by reason.",
    "mold_packets": "Packets received and sent.",
    "mold_bad_packets": "Packets that are not MoldUDP64, by reason.",
    "mold_requests": "Requests for messages that are missing.",
    "mold_answers": "Requests that were answered from the log.",
    "mold_lost": "Messages that were given up; gap records have their numbers.",
    "mold_too_large": "Records that fit into no packet, and were sent as empty messages.",
    "failures": "How often a part failed and began again.",
    "zeromq_messages": "Messages received, with heartbeats.",
    "zeromq_unnumbered": "Messages of foreign senders: what was lost before them is unknown.",
    "zeromq_lost": "Messages that are not in the topic, by reason; gap records have their numbers.",
    "zeromq_late": "Messages that came behind a message with a higher number.",
    "zeromq_bad_messages": "Messages that could not become records, by reason.",
    "zeromq_pauses": "How often a stream paused, because the cluster or a receiver was slower.",
    "statsd_kernel_drops": "Packets that the kernel dropped because the bridge was too slow.",
}


class Counts:
    """Counters of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: Counter[Series] = Counter()
        self._cells: list[tuple[Series, list[int]]] = []

    def add(self, name: str, amount: int = 1, **by: str) -> None:
        """Count. `by` are the labels."""
        series = (name, tuple(sorted(by.items())))
        with self._lock:
            if series in self._values or len(self._values) < SERIES_MAX:
                self._values[series] += amount

    def series(self, name: str, **by: str) -> Callable[[], None]:
        """Counts one each time it is called, by one thread at a time: for what is counted for each
        record. It needs no lock."""
        cell = [0]
        with self._lock:
            self._cells.append(((name, tuple(sorted(by.items()))), cell))

        def count() -> None:
            cell[0] += 1

        return count

    def of(self, name: str, **by: str) -> int:
        """The sum of the series that have these labels."""
        wanted = set(by.items())
        items = self._items()
        return sum(it for (found, its), it in items if found == name and wanted <= set(its))

    def all(self) -> list[tuple[str, dict[str, str], int]]:
        """Every series: its name, its labels and its value."""
        return [(name, dict(by), value) for (name, by), value in self._items()]

    def families(self) -> Iterable[Family]:
        """As Prometheus has them."""
        items = sorted(self._items())
        for name in sorted({series[0] for series, _ in items}):
            samples = [(labels(**dict(by)), value) for (found, by), value in items if found == name]
            yield counter(f"{PREFIX}{name}_total", HELP[name], samples)

    def _items(self) -> list[tuple[Series, int]]:
        with self._lock:
            found = self._values.copy()
            for series, cell in self._cells:
                if cell[0]:
                    found[series] += cell[0]
        return list(found.items())
