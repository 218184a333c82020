"""Brokers, ours or Apache's, that abort a transaction soon after its time is out."""

from __future__ import annotations

from pathlib import Path

from tests.peers.kafka import start_kafka
from tests.peers.servers import Server, start_millstream

# By default they look for such every 10 seconds.
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}


def start_impatient(kind: str, directory: Path) -> Server:
    """`kind` is "millstream" or "kafka"."""
    if kind == "kafka":
        return start_kafka(directory, SETTINGS)
    return start_millstream(directory / "data", SETTINGS)
